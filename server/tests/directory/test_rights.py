"""The directory's roles: what each may do, what nobody may do with a stolen login, and logins that lack rights."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from plainsql_server.core.errors import ConflictError, EngineError
from plainsql_server.core.share import UNSEEN_S, WHOLE
from plainsql_server.directory import audit, keys, usage
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.migrations import migrate
from plainsql_server.directory.rights.grants import FUNCTIONS, SEQUENCES, TABLES, Role
from plainsql_server.directory.sharing.processes import FORGOTTEN_S
from plainsql_server.directory.usage import UsageSum
from plainsql_server.limits.permits import MINUTE
from server.tests.customers import Customers
from server.tests.postgres import Postgres, as_role

DAY = datetime.now(UTC).date()


@pytest.fixture
def filled(dsn: str, postgres: Postgres) -> str:
    customers = Customers(dsn)
    customers.add_cell("local", postgres.conninfo)
    for name in ("acme", "other"):
        customers.add_organization(name)
        customers.add_database("main", name)
        customers.new_key("write", organization=name)
    return dsn


@pytest.fixture
def data(filled: str) -> Iterator[psycopg.Connection]:
    """A data plane's login, in the wrong hands."""
    with psycopg.connect(as_role(filled, Role.DATA), autocommit=True) as connection:
        yield connection


def ask(dsn: str, query: str, *arguments: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode(), arguments).fetchall()


def names(dsn: str, kinds: str) -> set[str]:
    listed = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = ANY(%s)"
    return {name for (name,) in ask(dsn, listed, list(kinds))}


def test_every_table_sequence_and_function_has_its_rights(dsn: str) -> None:
    """A new one must be added to grants.py."""
    assert names(dsn, "rvmp") == set(TABLES)
    assert names(dsn, "S") == set(SEQUENCES)
    found = ask(dsn, "SELECT oid FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
    expected = ask(
        dsn, "SELECT to_regprocedure('public.' || name)::oid FROM unnest(%s::text[]) AS name", list(FUNCTIONS)
    )
    assert sorted(found) == sorted(expected)


def test_functions_that_run_as_the_owner_have_a_fixed_search_path(dsn: str) -> None:
    paths = ask(dsn, "SELECT DISTINCT proconfig FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace")
    assert paths == [(["search_path=pg_catalog, pg_temp"],)]


def test_the_public_may_do_nothing(dsn: str) -> None:
    open_to_all = """
        SELECT relname FROM pg_class, aclexplode(relacl) AS entry
        WHERE relnamespace = 'public'::regnamespace AND entry.grantee = 0
        UNION ALL
        SELECT proname FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) AS entry
        WHERE pronamespace = 'public'::regnamespace AND entry.grantee = 0
    """
    assert ask(dsn, open_to_all) == []


def test_migrate_takes_back_what_was_granted_by_hand_or_by_postgresql_14(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        owner.execute(f"GRANT UPDATE (digest), DELETE ON api_keys TO {Role.DATA}")
    migrate(dsn)
    with psycopg.connect(as_role(dsn, Role.DATA), autocommit=True) as data:
        for refused in ("DELETE FROM api_keys", "UPDATE api_keys SET digest = digest", "CREATE TABLE mine ()"):
            with pytest.raises(errors.InsufficientPrivilege):
                data.execute(refused)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE api_keys SET scopes = '{admin}'", "INSERT INTO api_keys (id) VALUES ('key_x')", "DELETE FROM api_keys",
        "UPDATE organizations SET tier = 'dedicated'", "UPDATE cells SET conninfo = 'host=mine'",
        "UPDATE databases SET state = 'ready'", "UPDATE databases SET record_secret = 's'", "DELETE FROM sessions",
        "SELECT FROM audit", "INSERT INTO audit (id) VALUES ('aud_x')", "DELETE FROM audit", "SELECT FROM usage",
        "UPDATE usage SET requests = 0", "DELETE FROM spanning_transactions", "DELETE FROM data_processes",
        "UPDATE spanning_transactions SET organization_id = 'org_x'", "SELECT delete_old_audit(1)",
        "SELECT clear_audit('org_x')",
        "CREATE TABLE mine ()", "CREATE FUNCTION now() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "SET ROLE plainsql_control", "TRUNCATE usage", "ALTER TABLE usage DISABLE TRIGGER ALL",
    ],
)  # fmt: skip
def test_a_data_planes_login_changes_nothing_of_others(data: psycopg.Connection, statement: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        data.execute(statement.encode())


@pytest.mark.parametrize("role", [Role.CONTROL, Role.OPERATOR])
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM audit",
        "UPDATE audit SET action = 'x'",
        "UPDATE tiers SET name = name",
        "UPDATE alembic_version SET version_num = '0001'",
        "CREATE TABLE mine ()",
    ],
)
def test_nobody_but_the_owner_rewrites_the_audit_log_or_the_schema(dsn: str, role: Role, statement: str) -> None:
    with psycopg.connect(as_role(dsn, role)) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(statement.encode())


@pytest.mark.parametrize(
    "statement",
    ["SELECT clear_audit('org_x')",
     "UPDATE organizations SET tier = 'dedicated'", "INSERT INTO organizations (id) VALUES ('org_x')",
     "UPDATE cells SET conninfo = 'host=mine'", "DELETE FROM api_keys", "UPDATE usage SET requests = 0"],
)  # fmt: skip
def test_the_control_plane_does_not_do_what_operators_do(dsn: str, statement: str) -> None:
    with psycopg.connect(as_role(dsn, Role.CONTROL)) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(statement.encode())


def used(dsn: str) -> list[tuple[Any, ...]]:
    return ask(dsn, "SELECT day, requests FROM usage ORDER BY 1, 2")


async def test_usage_is_noted_for_databases_that_exist_and_near_today(filled: str) -> None:
    (mine, organization), (_, other) = ask(filled, "SELECT id, organization_id FROM databases ORDER BY id")
    sums = [
        UsageSum(organization, mine, requests=2), UsageSum(other, mine, requests=5),
        UsageSum(organization, "db_gone", requests=7),
    ]  # fmt: skip
    async with Directory.open(as_role(filled, Role.DATA)) as directory, directory.connection() as connection:
        for _ in range(2):
            await usage.add(connection, DAY, sums)
        assert used(filled) == [(DAY, 4)]
        for day in (DAY - timedelta(days=9), DAY + timedelta(days=3)):
            with pytest.raises(errors.InvalidParameterValue):
                await usage.add(connection, day, sums)
        for wrong in (-1, 10**16):
            with pytest.raises(errors.InvalidParameterValue):
                await usage.add(connection, DAY, [UsageSum(organization, mine, requests=wrong)])
    assert used(filled) == [(DAY, 4)]


async def test_a_key_is_not_noted_as_used_in_the_future(filled: str) -> None:
    ids = [id_ for (id_,) in ask(filled, "SELECT id FROM api_keys")]
    async with Directory.open(as_role(filled, Role.DATA)) as directory, directory.connection() as connection:
        await keys.note_used(connection, dict.fromkeys([*ids, "key_gone"], datetime.now(UTC) + timedelta(days=9)))
    assert ask(filled, "SELECT count(*) FROM api_keys WHERE last_used_at <= now()") == [(2,)]


def test_a_reset_is_noted_for_an_actor_of_the_same_organization_alone(data: psycopg.Connection, filled: str) -> None:
    rows = ask(
        filled,
        "SELECT d.organization_id, d.id, k.id FROM databases d JOIN api_keys k USING (organization_id) ORDER BY d.id",
    )
    (mine, database, key), (other, _, others_key) = rows
    noting = "SELECT note_reset(%s, %s, %s, %s, 'req_1')"
    for wrong in (
        (other, database, "key", others_key), (mine, database, "key", others_key), (mine, database, "operator", None),
        (mine, database, "session", key), (mine, "db_gone", "key", key),
    ):  # fmt: skip
        with pytest.raises(errors.InvalidParameterValue):
            data.execute(noting, wrong)
    data.execute(noting, (mine, database, "key", key))
    noted = "SELECT organization_id, actor_id, target_id, request_id, abs(extract(epoch FROM now() - at)) < 60"
    assert ask(filled, f"{noted} FROM audit WHERE action = 'database.reset'") == [(mine, key, database, "req_1", True)]
    # In the order of their ids, entries are in the order of time.
    assert ask(filled, "SELECT action FROM audit ORDER BY id DESC LIMIT 1") == [("database.reset",)]


async def test_only_old_entries_of_the_audit_log_are_deleted(filled: str) -> None:
    before = ask(filled, "SELECT count(*) FROM audit")
    old, young = (int((datetime.now(UTC) - timedelta(days=days)).timestamp() * 1000) for days in (397, 395))
    for at_ms in (old, young):
        columns = "id, actor_kind, action, target_id, details"
        entry = f"INSERT INTO audit ({columns}) VALUES (%s, 'service', 'x', 'y', '{{}}') RETURNING id"
        ask(filled, entry, f"aud_{at_ms:012x}{'0' * 20}")
    async with Directory.open(as_role(filled, Role.CONTROL)) as directory:
        await audit.delete_old(directory, 1000)
    assert ask(filled, "SELECT count(*) FROM audit") == [(before[0][0] + 1,)]


def test_the_audit_log_of_an_organization_that_exists_is_not_cleared(filled: str) -> None:
    (entries,) = ask(filled, "SELECT count(*) FROM audit WHERE details <> '{}'")
    (organization, _) = ask(filled, "SELECT id FROM organizations ORDER BY id")
    with psycopg.connect(as_role(filled, Role.OPERATOR)) as operator, pytest.raises(errors.ObjectInUse):
        operator.execute("SELECT clear_audit(%s)", organization)
    assert ask(filled, "SELECT count(*) FROM audit WHERE details <> '{}'") == [entries]


def test_a_process_that_is_none_is_not_listed(data: psycopg.Connection) -> None:
    renew = "SELECT (renew_process(%s, %s, %s, 'space', %s, %s, 1, 0, '{}')).share"
    good = ("proc_" + "0" * 32, "host", 1, "data", "a:1")
    for index, value in enumerate(("x", "", 0, "other", "a" * 400)):
        wrong = (*good[:index], value, *good[index + 1 :])
        with pytest.raises(errors.InvalidParameterValue):
            data.execute(renew, wrong)
    assert data.execute(renew, good).fetchall() == [(WHOLE,)]
    assert data.execute("SELECT address FROM data_processes").fetchall() == [("a:1",)]


def test_permits_that_are_none_are_not_granted(data: psycopg.Connection) -> None:
    grant = "SELECT (grant_permits(%s, %s, %s, '{0}', '{0}', %s, '{1}', '{1}')).granted"
    good = (["org_a"], [200], [1], [1])
    for index, value in enumerate((["o" * 101], [-1], [1, 2], [1, 1])):
        wrong = (*good[:index], value, *good[index + 1 :])
        with pytest.raises(errors.InvalidParameterValue):
            data.execute(grant, wrong)
    assert data.execute(grant, good).fetchall() == [([1],)]
    with pytest.raises(errors.InsufficientPrivilege):
        data.execute("DELETE FROM permits")


def test_the_directory_divides_what_the_code_divides_and_forgets_when_the_code_says_so(dsn: str) -> None:
    (source,) = ask(dsn, "SELECT prosrc FROM pg_proc WHERE proname = 'renew_process'")
    for text in (f"interval '{UNSEEN_S:.0f} seconds'", f"interval '{FORGOTTEN_S:.0f} seconds'", f":= {WHOLE};"):
        assert text in source[0]
    (source,) = ask(dsn, "SELECT prosrc FROM pg_proc WHERE proname = 'grant_permits'")
    for text in (f"slot_ms CONSTANT integer := {MINUTE.slot_ms};", f"integer := {MINUTE.counted_slots};"):
        assert text in source[0]


def test_the_audit_log_is_kept_as_long_as_the_code_says(dsn: str) -> None:
    (source,) = ask(dsn, "SELECT prosrc FROM pg_proc WHERE proname = 'delete_old_audit'")
    assert f"interval '{audit.KEPT.days} days'" in source[0]


# Logins that lack rights ---------------------------------------------------------------------------------------------


async def test_a_login_without_rights_finds_the_directory_unavailable(dsn: str) -> None:
    """As after `restore --directory`, until `migrate` has granted the rights again."""
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {Role.DATA}")
    async with Directory.open(as_role(dsn, Role.DATA), role=Role.DATA) as directory:
        with pytest.raises(EngineError) as failure:
            await keys.find_by_digest(directory, b"")
        assert failure.value.code == "directory_unavailable"
        assert "migrate" in str(failure.value.internal_context)
        migrate(dsn)
        await keys.find_by_digest(directory, b"")
        await directory.check()


async def test_a_plane_with_another_planes_login_says_what_it_lacks(dsn: str) -> None:
    async with Directory.open(as_role(dsn, Role.DATA), role=Role.CONTROL) as directory:
        with pytest.raises(EngineError) as failure:
            await directory.check()
    assert "the role plainsql_data lacks UPDATE (name) on organizations" in str(failure.value.internal_context)
    assert "log in as plainsql_control" in str(failure.value.internal_context)


def test_migrate_says_who_must_create_the_roles_if_it_may_not(
    empty_dsn: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.connect() as admin:
        admin.execute("CREATE ROLE modest LOGIN")
        database = psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"]
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO modest").format(sql.Identifier(str(database))))
    own = psycopg.conninfo.make_conninfo(empty_dsn, user="modest")
    # The shared cluster has the roles, so that one who may not create them can still migrate.
    migrate(own)
    assert ask(own, "SELECT tableowner FROM pg_tables WHERE tablename = 'databases'") == [("modest",)]
    for module in ("rights.applying", "migrations"):
        monkeypatch.setattr(f"plainsql_server.directory.{module}.Role", [*Role, "plainsql_new"])
    with pytest.raises(ConflictError) as refused:
        migrate(own)
    assert "Run as a superuser: CREATE ROLE plainsql_new LOGIN; Then" in str(refused.value.hint)


def test_migrate_says_that_the_owner_must_run_it(dsn: str) -> None:
    with psycopg.connect(dsn) as owner:
        owner.execute("UPDATE alembic_version SET version_num = '0016'")
    with pytest.raises(ConflictError) as refused:
        migrate(as_role(dsn, Role.OPERATOR))
    assert refused.value.code == "not_the_owner"
    assert "must be owner" in str(refused.value.internal_context)
