"""Rules about databases: creating them, and finishing what was begun."""

import asyncio
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from plainsql_server.control_plane import cells, databases
from plainsql_server.control_plane.cell_work import CONNECTIONS
from plainsql_server.core.errors import ConflictError, EngineError, InternalError, LimitError, RequestError
from plainsql_server.directory import cells as stored_cells
from plainsql_server.directory import databases as stored
from plainsql_server.directory.cells import CellChange, CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.engine.admin import provisioning
from plainsql_server.engine.admin.cell import TEMPLATE
from plainsql_server.engine.admin.provisioning import EngineNames
from server.tests.control_plane.cell_state import yes
from server.tests.customers import added_cell
from server.tests.postgres import SUPERUSER, Postgres


def _works(postgres: Postgres, database: DatabaseRecord) -> bool:
    with postgres.connect(database.owner_role, database.engine_name) as owner:
        owner.execute("CREATE TABLE t AS SELECT 1 AS one")
    with postgres.connect(database.reader_role, database.engine_name) as reader:
        return reader.execute("SELECT one FROM t").fetchall() == [(1,)]


async def test_the_first_database_is_ready_and_the_default(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, postgres: Postgres
) -> None:
    first = await databases.create(directory, organization.id, "main")
    second = await databases.create(directory, organization.id, "other")
    assert (first.state, first.is_default, second.is_default) == (DatabaseState.READY, True, False)
    assert await stored.find(directory, organization.id, None) == first
    assert await stored.find(directory, organization.id, "other") == second
    assert await stored.find(directory, organization.id, "neither") is None
    assert await databases.list_(directory, organization.id) == [first, second]
    assert first.cell_conninfo == cell.conninfo
    assert _works(postgres, first)


async def test_a_taken_name_is_a_conflict(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord
) -> None:
    await databases.create(directory, organization.id, "main")
    with pytest.raises(ConflictError):
        await databases.create(directory, organization.id, "main")


async def test_an_invalid_name_is_rejected(directory: Directory, organization: OrganizationRecord) -> None:
    for name in ("", "Main", "1st", "a b", "x" * 64, "main\n"):
        with pytest.raises(RequestError):
            await databases.create(directory, organization.id, name)


async def test_the_tiers_number_of_databases_holds_even_for_creations_at_once(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord
) -> None:
    creations = [databases.create(directory, organization.id, f"db{number}") for number in range(5)]
    results = await asyncio.gather(*creations, return_exceptions=True)
    refused = [result for result in results if isinstance(result, LimitError)]
    made = [result for result in results if isinstance(result, DatabaseRecord)]
    assert (len(made), len(refused)) == (3, 2)
    assert sum(record.is_default for record in made) == 1
    assert "free" in refused[0].message
    assert "3" in refused[0].message


async def test_without_a_cell_there_is_no_database(directory: Directory, organization: OrganizationRecord) -> None:
    with pytest.raises(EngineError) as failure:
        await databases.create(directory, organization.id, "main")
    assert failure.value.code == "no_active_cell"
    assert await databases.list_(directory, organization.id) == []


async def test_an_unavailable_cell_leaves_a_failed_database_that_a_retry_completes(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, postgres: Postgres
) -> None:
    await stored_cells.change(directory, cell.id, CellChange(conninfo="host=/nowhere"), only_from=[])
    with pytest.raises(EngineError) as failure:
        await databases.create(directory, organization.id, "main")
    assert failure.value.code == "engine_unavailable"
    assert [each.state for each in await databases.list_(directory, organization.id)] == [DatabaseState.FAILED]
    await cells.set_address(directory, "local", cell.conninfo, SUPERUSER)
    finished = await databases.create(directory, organization.id, "main")
    assert finished.state is DatabaseState.READY
    assert _works(postgres, finished)


async def test_a_retry_completes_work_that_failed_midway(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, postgres: Postgres
) -> None:
    template = sql.Identifier(TEMPLATE)
    with postgres.connect() as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO hidden").format(template))
    try:
        with pytest.raises(InternalError):
            await databases.create(directory, organization.id, "main")
    finally:
        with postgres.connect() as admin:
            admin.execute(sql.SQL("ALTER DATABASE hidden RENAME TO {}").format(template))
    (begun,) = await databases.list_(directory, organization.id)
    assert begun.state is DatabaseState.FAILED
    with postgres.connect() as admin:
        assert admin.execute("SELECT FROM pg_roles WHERE rolname = %s", (begun.owner_role,)).rowcount == 1
    finished = await databases.create(directory, organization.id, "main")
    assert (finished.id, finished.state) == (begun.id, DatabaseState.READY)
    assert _works(postgres, finished)


async def test_an_interrupted_creation_is_finished_by_the_next_one(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, postgres: Postgres
) -> None:
    creation = asyncio.ensure_future(databases.create(directory, organization.id, "main"))
    delay_ms = 5
    while not (await asyncio.wait([creation], timeout=delay_ms / 1000))[0]:
        creation.cancel()
        await asyncio.wait([creation])
        creation = asyncio.ensure_future(databases.create(directory, organization.id, "main"))
        delay_ms += 10
    assert delay_ms > 5, "at least one attempt was cut short"
    try:
        finished = await creation
    except ConflictError:
        # The last one that was cut short had just finished.
        finished = await databases.get_named(directory, organization.id, "main")
    assert finished.state is DatabaseState.READY
    assert _works(postgres, finished)


async def test_the_emptiest_active_cell_takes_a_new_database(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, postgres: Postgres
) -> None:
    await databases.create(directory, organization.id, "main")
    second = await added_cell(directory, "second", postgres.conninfo)
    assert (await databases.create(directory, organization.id, "other")).cell_id == second.id


async def test_a_dropped_database_leaves_nothing_on_its_cell_even_while_in_use(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, postgres: Postgres
) -> None:
    database = await databases.create(directory, organization.id, "main")
    names = EngineNames(database.engine_name, database.owner_role, database.reader_role)
    with postgres.connect(database.owner_role, database.engine_name) as owner:
        owner.execute("CREATE TABLE t ()")
        await provisioning.drop_database(cell.conninfo, SUPERUSER, names, yes)
        with pytest.raises(psycopg.OperationalError):
            owner.execute("SELECT 1")
    await provisioning.drop_database(cell.conninfo, SUPERUSER, names, yes)
    with postgres.connect() as admin:
        left = admin.execute(
            "SELECT rolname FROM pg_roles WHERE rolname = ANY(%(names)s)"
            " UNION ALL SELECT datname FROM pg_database WHERE datname = ANY(%(names)s)",
            {"names": [names.database, names.owner_role, names.reader_role]},
        )
        assert left.fetchall() == []


async def test_concurrent_size_queries_share_few_connections_to_the_cell(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, postgres: Postgres
) -> None:
    made = await databases.create(directory, organization.id, "main")
    # Sizes that nobody has asked for, so that none of them is remembered.
    asked = [replace(made, id=f"db_{number}") for number in range(60)]
    most = 0
    with postgres.connect() as watching, watching.transaction():
        # Nobody gets beyond the beginning of a connection, so that all that are opened are there together.
        watching.execute("LOCK TABLE pg_database IN ACCESS EXCLUSIVE MODE")
        asking = asyncio.gather(*(databases.sizes_bytes(directory, [each]) for each in asked))
        while not asking.done():
            row = watching.execute(
                "SELECT count(*) FROM pg_locks WHERE relation = 'pg_database'::regclass AND NOT granted"
            ).fetchone()
            assert row is not None
            most = max(most, row[0])
            await asyncio.sleep(0.01)
    assert await asking == [{}] * 60
    # The directory, on the same server here, opens some for itself.
    assert CONNECTIONS <= most < 2 * CONNECTIONS


async def test_a_size_is_remembered_for_some_seconds_and_no_longer_than_its_database(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, postgres: Postgres
) -> None:
    made = await databases.create(directory, organization.id, "main")
    first = await databases.sizes_bytes(directory, [made])
    assert first[made.id] > 1_000_000
    with postgres.connect(made.owner_role, made.engine_name) as owner:
        owner.execute("CREATE TABLE t AS SELECT generate_series(1, 100000)")
    assert await databases.sizes_bytes(directory, [made]) == first
    await databases.delete(directory, made, restore_s=0, restorable=False)
    await databases.drop(directory, made)
    assert await databases.sizes_bytes(directory, [made]) == {}
