"""Reaching the directory, and not reaching it."""

import time

import pytest

from plainsql_server.core.errors import EngineError, InternalError
from plainsql_server.core.observation import describe_for_operators
from plainsql_server.directory import keys
from plainsql_server.directory.connection import Directory
from server.tests.load import STALL_S
from server.tests.postgres import Postgres


async def test_opening_does_not_need_the_directory_to_be_there_and_a_request_fails_fast() -> None:
    async with Directory.open("host=/nowhere dbname=directory") as directory:
        started_s = time.monotonic()
        with pytest.raises(EngineError) as failure:
            await keys.find_by_digest(directory, b"")
        assert time.monotonic() - started_s < 4 + STALL_S
    assert failure.value.code == "directory_unavailable"
    assert failure.value.retryable
    assert failure.value.retry_after_ms
    assert "/nowhere" in (failure.value.internal_context or "")
    assert "/nowhere" not in failure.value.message


async def test_checking_an_unavailable_directory_takes_a_bounded_time() -> None:
    async with Directory.open("host=/nowhere dbname=directory") as directory:
        started_s = time.monotonic()
        with pytest.raises(EngineError):
            await directory.check()
        assert time.monotonic() - started_s < 4 + STALL_S


async def test_checking_a_healthy_directory_passes(directory: Directory) -> None:
    await directory.check()


async def test_a_directory_without_tables_is_not_available(empty_dsn: str) -> None:
    async with Directory.open(empty_dsn) as directory:
        with pytest.raises(EngineError) as failure:
            await directory.check()
    assert "migrate" in (failure.value.internal_context or "")


async def test_our_own_wrong_sql_is_an_internal_error(directory: Directory) -> None:
    with pytest.raises(InternalError) as failure:
        async with directory.connection() as connection:
            await connection.execute("SELEKT 1")
    assert "SELEKT" not in failure.value.message
    assert "SELEKT" in (failure.value.internal_context or "")


async def fail_with(directory: Directory, statement: str) -> None:
    async with directory.connection() as connection:
        await connection.execute("CREATE TEMP TABLE named (name text CONSTRAINT unique_name PRIMARY KEY)")
        await connection.execute("INSERT INTO named VALUES ('a value')")
        await connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "context"),
    [
        (
            "INSERT INTO named VALUES ('a value')",
            'directory: UniqueViolation: 23505 duplicate key value violates unique constraint "unique_name"',
        ),
        ("SELECT 'a value'::int", "directory: InvalidTextRepresentation: 22P02"),
        ("DO $$ BEGIN RAISE EXCEPTION 'a value'; END $$", "directory: RaiseException: P0001"),
    ],
)
async def test_values_in_postgresql_errors_are_not_logged(directory: Directory, statement: str, context: str) -> None:
    with pytest.raises(InternalError) as failure:
        await fail_with(directory, statement)
    assert describe_for_operators(failure.value) == context


async def test_connections_closed_by_the_server_are_replaced_transparently(
    directory: Directory, postgres: Postgres
) -> None:
    await directory.check()
    with postgres.connect() as admin:
        ended = admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'plainsql-directory'"
        )
        assert ended.rowcount > 0
    await directory.check()


async def test_statements_are_read_committed_whatever_the_server_defaults_to(dsn: str, postgres: Postgres) -> None:
    with postgres.connect() as admin:
        admin.execute("ALTER ROLE plainsql_admin SET default_transaction_isolation = 'serializable'")
    try:
        async with Directory.open(dsn) as directory, directory.connection() as connection:
            alone = await (await connection.execute("SHOW transaction_isolation")).fetchone()
            async with connection.transaction():
                together = await (await connection.execute("SHOW transaction_isolation")).fetchone()
    finally:
        with postgres.connect() as admin:
            admin.execute("ALTER ROLE plainsql_admin RESET default_transaction_isolation")
    assert alone == together == {"transaction_isolation": "read committed"}
