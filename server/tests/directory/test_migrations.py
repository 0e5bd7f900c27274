"""The directory's schema, from nothing and again."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from plainsql_server.core.errors import EngineError
from plainsql_server.directory.migrations import migrate
from plainsql_server.limits.tiers import TIERS

_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"


def _tables(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        return {name for (name,) in connection.execute(_TABLES)}


def test_an_empty_database_gets_every_table(empty_dsn: str) -> None:
    migrate(empty_dsn)
    assert _tables(empty_dsn) == {
        "tiers", "organizations", "cells", "databases", "roles", "api_keys", "sessions", "usage", "audit",
        "spanning_transactions", "moves", "data_processes", "permits", "backups", "rehearsals",
        "restores", "restore_workers", "alembic_version",
    }  # fmt: skip


def test_migrating_again_changes_nothing(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO organizations (id, name, tier) VALUES ('org_1', 'kept', 'free')")
    migrate(dsn)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT name FROM organizations").fetchall() == [("kept",)]


def test_concurrent_migrations_run_one_after_the_other(empty_dsn: str) -> None:
    with ThreadPoolExecutor(1) as pool, psycopg.connect(empty_dsn) as first:
        first.execute("SELECT pg_advisory_xact_lock(7040320155210118711)")
        second = pool.submit(migrate, empty_dsn)
        with pytest.raises(TimeoutError):
            second.result(timeout=1)
        first.rollback()
        second.result(timeout=30)
    assert "api_keys" in _tables(empty_dsn)


def test_a_migration_that_fails_changes_nothing(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("CREATE TABLE roles ()")
    with pytest.raises(Exception, match="The service failed") as failure:
        migrate(empty_dsn)
    assert 'relation "roles" already exists' in failure.value.internal_context  # type: ignore[attr-defined]
    assert _tables(empty_dsn) == {"roles"}


@pytest.fixture
def dsn_0016(dsn: str) -> str:
    """A directory before the last migrations."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE organizations ADD CONSTRAINT organizations_name_key UNIQUE (name)")
        added = ("organizations_by_name", "moves_of_database", "backups_of_database", "sessions_of_organization")
        connection.execute(f"DROP INDEX {', '.join(added)}".encode())
        columns = ("plane", "pid_space", "number", "share")
        dropped = ", ".join(f"DROP COLUMN {column}" for column in columns)
        connection.execute(f"ALTER TABLE data_processes {dropped}".encode())
        connection.execute(
            "DROP FUNCTION renew_process, leave_process, grant_permits, delete_old_permits; DROP TABLE permits"
        )
        dropped = "DROP COLUMN branch_of, DROP COLUMN expires_at, DROP COLUMN content_since"
        connection.execute(f"ALTER TABLE databases {dropped}".encode())
        connection.execute("DROP TABLE rehearsals, restores, restore_workers")
        connection.execute("UPDATE alembic_version SET version_num = '0016'")
    return dsn


def test_a_migration_gives_up_a_lock_that_would_make_others_wait(dsn_0016: str) -> None:
    with psycopg.connect(dsn_0016) as reader:
        reader.execute("SELECT FROM organizations")
        with pytest.raises(EngineError) as failure:
            migrate(dsn_0016, retry_for_s=0)
    assert failure.value.code == "directory_busy"


def test_a_migration_tries_again_to_get_a_lock_and_waits_for_readers_last(dsn_0016: str) -> None:
    # One reading of the locks: a second would find an attempt that has ended since, with none left.
    waiting = """
        WITH locks AS MATERIALIZED (SELECT * FROM pg_locks)
        SELECT virtualtransaction, (SELECT count(*) FROM locks o WHERE o.pid = w.pid AND o.mode = 'ShareLock')
        FROM locks w
        WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = 'organizations'::regclass
    """
    attempts: set[tuple[str, int]] = set()
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(dsn_0016) as reader,
        psycopg.connect(dsn_0016, autocommit=True) as watcher,
    ):
        reader.execute("SELECT FROM organizations")
        migrating = pool.submit(migrate, dsn_0016)
        while len(attempts) < 2 and not migrating.done():
            attempts.update(watcher.execute(waiting).fetchall())
        reader.rollback()
        migrating.result()
    # Each index was built before, with a lock on its table.
    assert [locks >= 4 for _, locks in attempts] == [True, True]


def test_a_migration_of_a_directory_in_use_is_in_the_audit_log(dsn_0016: str) -> None:
    noted = "SELECT actor_kind, details FROM audit WHERE action = 'directory.migrate'"
    with psycopg.connect(dsn_0016, autocommit=True) as connection:
        for _ in range(2):
            migrate(dsn_0016)
            assert connection.execute(noted).fetchall() == [("operator", {"from": "0016", "to": "0022"})]


def test_an_unavailable_directory_is_an_engine_error() -> None:
    with pytest.raises(EngineError) as failure:
        migrate("host=/nowhere dbname=directory")
    assert failure.value.code == "directory_unavailable"


def test_the_directory_knows_the_same_tiers_as_the_code(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        assert {name for (name,) in connection.execute("SELECT name FROM tiers")} == set(TIERS)


def test_a_percent_sign_in_the_connection_string_is_harmless(empty_dsn: str) -> None:
    dsn = f"{empty_dsn} application_name='100%(x)s'"
    migrate(dsn)
    assert "api_keys" in _tables(dsn)
