"""What the directory's tables refuse by themselves, whatever the code above them does."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

_SEED = """
    INSERT INTO organizations (id, name, tier) VALUES ('org_1', 'one', 'free'), ('org_2', 'two', 'free');
    INSERT INTO cells (id, name, conninfo, admin_role, state) VALUES ('cell_1', 'local', '', 'admin', 'active');
    INSERT INTO databases (id, organization_id, name, state, is_default, engine_name, cell_id)
    VALUES ('db_1', 'org_1', 'main', 'ready', true, 'd_1', 'cell_1'),
           ('db_2', 'org_2', 'main', 'ready', true, 'd_2', 'cell_1');
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        opened.execute(_SEED)
        yield opened


def _database(**changes: object) -> tuple[str, list[object]]:
    row: dict[str, object] = {
        "id": "db_3", "organization_id": "org_1", "name": "other", "state": "ready", "is_default": False,
        "engine_name": "d_3", "cell_id": "cell_1",
    } | changes  # fmt: skip
    return f"INSERT INTO databases ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", list(row.values())


def _key(**changes: object) -> tuple[str, list[object]]:
    row: dict[str, object] = {
        "id": "key_1", "organization_id": "org_1", "name": "k", "digest": bytes(32), "shown_prefix": "svc_k_abcd",
        "last_four": "wxyz", "scopes": ["read"], "database_id": None,
    } | changes  # fmt: skip
    return f"INSERT INTO api_keys ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", list(row.values())


def test_what_a_purge_deletes_is_found_by_indexes(connection: psycopg.Connection) -> None:
    """A foreign key without an index makes each deleted row a scan of the referencing table."""
    unindexed = """
        SELECT c.conrelid::regclass || ': ' || c.conname FROM pg_constraint c
        WHERE c.contype = 'f' AND c.confrelid::regclass::text IN ('databases', 'organizations', 'api_keys')
          AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.conrelid AND i.indkey[0] = ANY(c.conkey)
                          AND (i.indpred IS NULL OR c.conrelid = 'spanning_transactions'::regclass))
    """
    assert connection.execute(unindexed.encode()).fetchall() == []


def test_an_organization_has_one_default_database(connection: psycopg.Connection) -> None:
    with pytest.raises(errors.UniqueViolation, match="databases_one_default"):
        connection.execute(*_database(is_default=True))
    connection.execute(*_database())


def test_a_name_is_taken_once_per_organization_until_its_database_is_deleted(connection: psycopg.Connection) -> None:
    with pytest.raises(errors.UniqueViolation, match="databases_one_name"):
        connection.execute(*_database(name="main"))
    connection.execute("UPDATE databases SET state = 'deleted', is_default = false WHERE id = 'db_1'")
    connection.execute(*_database(name="main", is_default=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "asleep"},
        {"name": "Upper"},
        {"name": ""},
        {"name": "x" * 64},
        {"engine_name": "postgres"},
        {"state": "deleted", "is_default": True},
    ],
)
def test_an_invalid_database_is_rejected(connection: psycopg.Connection, changes: dict[str, object]) -> None:
    with pytest.raises(errors.CheckViolation):
        connection.execute(*_database(**changes))


@pytest.mark.parametrize("changes", [{"cell_id": "cell_9"}, {"organization_id": "org_9"}])
def test_a_database_needs_its_cell_and_organization(connection: psycopg.Connection, changes: dict[str, object]) -> None:
    with pytest.raises(errors.ForeignKeyViolation):
        connection.execute(*_database(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"digest": bytes(31)}, {"digest": b"svc_k_the secret itself"}, {"scopes": []}, {"scopes": ["read", "root"]}],
)
def test_an_invalid_key_is_rejected(connection: psycopg.Connection, changes: dict[str, object]) -> None:
    with pytest.raises(errors.CheckViolation):
        connection.execute(*_key(**changes))


def test_a_digest_belongs_to_one_key(connection: psycopg.Connection) -> None:
    connection.execute(*_key())
    with pytest.raises(errors.UniqueViolation):
        connection.execute(*_key(id="key_2"))


def test_a_key_cannot_be_bound_to_another_organizations_database(connection: psycopg.Connection) -> None:
    connection.execute(*_key(database_id="db_1"))
    with pytest.raises(errors.ForeignKeyViolation):
        connection.execute(*_key(id="key_2", digest=bytes(31) + b"2", database_id="db_2"))


def test_an_organization_needs_a_tier_that_exists(connection: psycopg.Connection) -> None:
    with pytest.raises(errors.ForeignKeyViolation):
        connection.execute("INSERT INTO organizations (id, name, tier) VALUES ('org_3', 'three', 'platinum')")


def test_a_name_that_looks_like_an_id_is_refused(connection: psycopg.Connection) -> None:
    with pytest.raises(errors.CheckViolation):
        connection.execute("INSERT INTO organizations (id, name, tier) VALUES ('org_3', 'org_1', 'free')")


def test_a_cells_database_count_follows_every_change(connection: psycopg.Connection) -> None:
    def counted() -> list[int]:
        return [row[0] for row in connection.execute("SELECT databases FROM cells ORDER BY id")]

    connection.execute(
        "INSERT INTO cells (id, name, conninfo, admin_role, state) VALUES ('cell_2', 'b', '', 'admin', 'full')"
    )
    assert counted() == [2, 0]
    for change, expected in (
        ("UPDATE databases SET state = 'suspended'", [2, 0]),
        ("UPDATE databases SET cell_id = 'cell_2' WHERE id = 'db_1'", [1, 1]),
        ("UPDATE databases SET state = 'deleted', is_default = false WHERE id = 'db_1'", [1, 0]),
        ("UPDATE databases SET cell_id = 'cell_1' WHERE id = 'db_1'", [1, 0]),
        ("UPDATE databases SET state = 'ready', cell_id = 'cell_2' WHERE id = 'db_1'", [1, 1]),
        ("DELETE FROM databases WHERE id = 'db_2'", [0, 1]),
    ):
        connection.execute(change)
        assert counted() == expected, change
    connection.execute(*_database(state="deleted"))
    assert counted() == [0, 1]
