"""Drizzle over HTTP (`drizzle-orm/neon-http`), unmodified from npm."""

from typing import Any

import pytest

from server.tests.neon_programs import run_program
from server.tests.service import Service


@pytest.fixture(scope="module")
def seen(service: Service, neon_packages: None) -> dict[str, Any]:
    return run_program("drizzle", service)


def test_drizzle_inserts_and_selects_with_its_types(seen: dict[str, Any]) -> None:
    author = {
        "id": 1, "name": "Ann", "born": "1990-02-03T04:05:06.789Z", "followers": "9007199254740993n",
        "royalty": "0.10", "profile": {"langs": ["de", "en"]}, "tags": ["a,b", 'c"'], "break": "1 day 02:00:00",
    }  # fmt: skip
    assert seen["inserted"] == [author]
    assert seen["selected"] == [{"name": "Ann"}]
    assert seen["joined"] == [
        {"TABLE_books": {"id": 1, "author_id": 1, "title": "One"}, "TABLE_authors": author | {"name": "Anna"}}
    ]


def test_drizzle_runs_a_batch_with_a_relational_query(seen: dict[str, Any]) -> None:
    listed = [{"name": "Anna", "followers": "9007199254740993n", "books": [{"title": "One"}, {"title": "Two"}]}]
    assert seen["batch"] == [[{"id": 1}, {"id": 2}], 1, listed]


def test_drizzle_reports_errors_and_rolls_a_failed_batch_back(seen: dict[str, Any]) -> None:
    message = 'duplicate key value violates unique constraint "TABLE_names"'
    duplicate = {"code": "23505", "message": message, "constraint": "TABLE_names"}
    assert seen["duplicate"] == seen["failed_batch"] == duplicate
    assert seen["unknown"] == {"code": "42703", "position": "8", "message": 'column "nope" does not exist'}
    assert seen["kept"] == 2
