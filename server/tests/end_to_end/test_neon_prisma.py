"""Prisma's adapter for the Neon driver over HTTP (`PrismaNeonHttp`), unmodified from npm."""

from server.tests.neon_programs import run_program
from server.tests.service import Service


def test_prismas_adapter_inserts_returns_updates_and_reports_errors(service: Service, neon_packages: None) -> None:
    seen = run_program("prisma", service)
    inserted = seen.pop("inserted")
    assert inserted["columnNames"] == ["id", "big", "amount", "data", "doc", "at", "tags", "name"]
    # Int32, Int64, Numeric, Bytes, Json, DateTime, TextArray and Text, as its enum ColumnTypeEnum numbers them.
    assert inserted["columnTypes"] == [0, 1, 4, 13, 11, 10, 71, 7]
    at = "2026-11-14T22:15:31.244+00:00"
    data = {"type": "Buffer", "data": [1, 0, 255]}
    assert inserted["rows"] == [[1, "9007199254740993", "0.10", data, '{"a": 1}', at, ["a,b", None], "x"]]
    message = 'duplicate key value violates unique constraint "TABLE_name_key"'
    duplicate = {"code": "23505", "message": message, "constraint": "TABLE_name_key"}
    # As `docs/neon.md` says: the adapter itself refuses what needs several statements in a transaction.
    refused = {"message": "Transactions are not supported in HTTP mode"}
    assert seen == {"provider": "postgres", "updated": 1, "duplicate": duplicate, "transaction": refused}
