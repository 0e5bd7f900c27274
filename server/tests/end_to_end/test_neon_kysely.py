"""Kysely with the dialect of `kysely-neon`, unmodified from npm."""

from server.tests.neon_programs import run_program
from server.tests.service import Service


def test_kysely_creates_inserts_updates_selects_and_reports_errors(service: Service, neon_packages: None) -> None:
    message = 'duplicate key value violates unique constraint "TABLE_name_key"'
    assert run_program("kysely", service) == {
        "inserted": [
            {"id": 1, "name": "a", "amount": "12345678901234567890.5", "doc": [1, {"b": None}],
             "at": "2009-02-13T23:31:30.123Z"},
            {"id": 2, "name": "b", "amount": None, "doc": None, "at": None},
        ],
        "updated": {"numUpdatedRows": "1n"},
        "selected": [{"id": 1, "name": "a"}, {"id": 2, "name": "c"}],
        "raw": [{"sum": 3}],
        "duplicate": {"code": "23505", "message": message, "constraint": "TABLE_name_key"},
        "unknown": {"code": "42703", "position": "8", "message": 'column "nope" does not exist'},
        "tables": [5],
    }  # fmt: skip
