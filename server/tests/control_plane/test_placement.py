"""Where new databases go, and the states of cells: every pair of them, tried."""

import asyncio

import psycopg
import pytest

from plainsql_server.control_plane import cells, databases, moves, organizations
from plainsql_server.control_plane.states import CELL_TRANSITIONS, MOVE_TRANSITIONS
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, RequestError
from plainsql_server.directory import databases as stored_databases
from plainsql_server.directory import moves as stored_moves
from plainsql_server.directory.cells import CellChange, CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.moves import MoveRecord, MoveState
from plainsql_server.directory.organizations import OrganizationRecord
from server.tests.customers import added_cell
from server.tests.postgres import SUPERUSER, Postgres


@pytest.fixture
async def second(directory: Directory, cell: CellRecord, postgres: Postgres) -> CellRecord:
    """To the directory it is another cell, and that is all that counts here."""
    return await added_cell(directory, "second", postgres.conninfo)


async def test_a_new_database_goes_to_the_cell_with_the_most_free_capacity(
    directory: Directory, cell: CellRecord, second: CellRecord
) -> None:
    owner = await organizations.create(directory, "Big", "dedicated")
    await cells.change(directory, "local", CellChange(max_databases=2))
    await cells.change(directory, "second", CellChange(max_databases=6))
    chosen = [(await databases.create(directory, owner.id, f"db-{number}")).cell_id for number in range(8)]
    assert chosen[:4] == [cell.id, second.id, second.id, second.id], "a third of one is less than half of the other"
    assert chosen.count(cell.id) == 2
    with pytest.raises(EngineError) as failure:
        await databases.create(directory, owner.id, "one-too-many")
    assert failure.value.code == "no_active_cell"


async def test_cell_counts_stay_correct_under_concurrent_changes(
    directory: Directory, dsn: str, cell: CellRecord, second: CellRecord
) -> None:
    owner = await organizations.create(directory, "Big", "dedicated")

    async def insert(name: str, on: CellRecord, *, draft: bool = False) -> DatabaseRecord:
        as_draft_s = 60 if draft else 0
        return await databases.insert(directory, owner.id, name, OPERATOR, as_draft_s=as_draft_s, on=on)

    async def begin(number: int) -> tuple[MoveRecord, DatabaseRecord, DatabaseRecord]:
        # To and fro, so that two of them want the same two cells in opposite orders.
        from_, to = (cell, second) if number % 2 else (second, cell)
        database, copy = await insert(f"moved-{number}", from_), await insert(f"copy-{number}", to, draft=True)
        stored = await stored_moves.insert(directory, database, copy, 60)
        await stored_moves.stop(directory, stored.id, 60)
        return stored, database, copy

    async def finish(stored: MoveRecord, database: DatabaseRecord, copy: DatabaseRecord) -> None:
        async with places:
            assert await stored_moves.finish(directory, stored, database, copy, OPERATOR)
            assert await stored_databases.set_deleted(directory, copy.id, OPERATOR)

    async def create(number: int) -> None:
        async with places:
            await insert(f"new-{number}", cell)

    begun = [await begin(number) for number in range(20)]
    # As many as the directory has connections, for which nobody waits long.
    places = asyncio.Semaphore(4)
    await asyncio.gather(*(finish(*each) for each in begun), *(create(number) for number in range(10)))
    with psycopg.connect(dsn) as connection:
        counted = connection.execute("SELECT id, databases FROM cells").fetchall()
    assert set(counted) == {(cell.id, 10 + 10), (second.id, 10)}


async def test_a_cell_that_is_kept_for_a_tier_takes_that_tiers_databases_first_and_no_others(
    directory: Directory, cell: CellRecord, second: CellRecord
) -> None:
    await cells.change(directory, "second", CellChange(tiers=["standard"]))
    for tier, expected in (("free", cell.id), ("standard", second.id), ("dedicated", cell.id)):
        owner = await organizations.create(directory, tier, tier)
        assert (await databases.create(directory, owner.id, "main")).cell_id == expected
    await cells.change(directory, "second", CellChange(tiers=[]))
    assert (await cells.get(directory, "second")).tiers is None


@pytest.mark.parametrize("state", [CellState.FULL, CellState.DRAINING, CellState.DOWN])
async def test_only_an_active_cell_takes_new_databases(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, second: CellRecord, state: CellState
) -> None:
    await databases.create(directory, organization.id, "main")
    await cells.change(directory, "second", CellChange(state=state))
    assert (await databases.create(directory, organization.id, "other")).cell_id == cell.id


@pytest.mark.parametrize("state", [each for each in CellState if each is not CellState.REMOVED])
@pytest.mark.parametrize("next_state", CellState)
async def test_a_cell_allows_only_the_transitions_in_the_table(
    directory: Directory, dsn: str, cell: CellRecord, state: CellState, next_state: CellState
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE cells SET state = %s, lost_since = CASE WHEN %s = 'lost' THEN now() END", (state, state)
        )
    if next_state is state or next_state in CELL_TRANSITIONS[state]:
        assert (await cells.change(directory, "local", CellChange(state=next_state))).state is next_state
    else:
        with pytest.raises(ConflictError):
            await cells.change(directory, "local", CellChange(state=next_state))
        assert (await cells.get(directory, "local")).state is state


async def test_a_cell_that_is_not_fit_stays_down(directory: Directory, dsn: str, cell: CellRecord) -> None:
    await cells.change(directory, "local", CellChange(state=CellState.DOWN))
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE cells SET conninfo = 'host=/nowhere'")
    with pytest.raises(EngineError):
        await cells.change(directory, "local", CellChange(state=CellState.ACTIVE))
    assert (await cells.get(directory, "local")).state is CellState.DOWN


@pytest.fixture
async def moving(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, second: CellRecord
) -> tuple[MoveRecord, DatabaseRecord, DatabaseRecord]:
    """A move, as far as the directory is concerned."""
    await cells.change(directory, "second", CellChange(max_databases=0))
    database = await databases.create(directory, organization.id, "main")
    copy = await databases.insert(directory, organization.id, "copy", OPERATOR, as_draft_s=60, counted=False, on=second)
    return await stored_moves.insert(directory, database, copy, 60), database, copy


@pytest.mark.parametrize("state", MoveState)
@pytest.mark.parametrize("next_state", MoveState)
async def test_a_move_allows_only_the_transitions_in_the_table(
    directory: Directory,
    dsn: str,
    moving: tuple[MoveRecord, DatabaseRecord, DatabaseRecord],
    state: MoveState,
    next_state: MoveState,
) -> None:
    move, database, copy = moving
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE moves SET state = %s", (state,))
    match next_state:
        case MoveState.COPYING:
            await stored_moves.resume(directory, move.id)
        case MoveState.STOPPING:
            await stored_moves.stop(directory, move.id, 60)
        case MoveState.UNDOING:
            await stored_moves.begin_undoing(directory, move.id, 60)
        case MoveState.UNDONE:
            await stored_moves.finish_undoing(directory, move, OPERATOR)
        case MoveState.DONE:
            await stored_moves.finish(directory, move, database, copy, OPERATOR)
    now = await stored_moves.find(directory, move.id)
    assert now is not None
    assert now.state is (next_state if next_state in MOVE_TRANSITIONS[state] else state)
    place = await databases.get(directory, database.id)
    is_done = now.state is MoveState.DONE and state is not MoveState.DONE
    assert (place.cell_id, place.engine_name) == (
        (copy.cell_id, copy.engine_name) if is_done else (database.cell_id, database.engine_name)
    )
    assert place.is_held == (now.state is MoveState.STOPPING and next_state is MoveState.STOPPING)


async def test_the_copy_of_a_move_is_no_database_of_its_customers(
    directory: Directory, organization: OrganizationRecord, moving: tuple[MoveRecord, DatabaseRecord, DatabaseRecord]
) -> None:
    _, database, _ = moving
    assert [each.id for each in await databases.list_(directory, organization.id)] == [database.id]
    await cells.change(directory, "local", CellChange(max_databases=10))
    for name in ("second", "third"):
        await databases.create(directory, organization.id, name)


async def test_a_database_is_moved_once_at_a_time(
    directory: Directory, moving: tuple[MoveRecord, DatabaseRecord, DatabaseRecord]
) -> None:
    _, database, copy = moving
    with pytest.raises(ConflictError) as failure:
        await stored_moves.insert(directory, database, copy, 60)
    assert failure.value.code == "move_under_way"


async def test_a_database_is_moved_only_to_an_allowed_cell(
    directory: Directory, organization: OrganizationRecord, cell: CellRecord, second: CellRecord, postgres: Postgres
) -> None:
    database = await databases.create(directory, organization.id, "main")
    outsider = await organizations.create(directory, "Stranger", "dedicated")
    await cells.add(directory, "theirs", postgres.conninfo, SUPERUSER, outsider.id)
    for name, error in (("nowhere", AccessError), ("local", RequestError), ("theirs", ConflictError)):
        with pytest.raises(error):
            await moves.choose(directory, database, name)
    await cells.change(directory, "second", CellChange(state=CellState.DRAINING))
    with pytest.raises(ConflictError):
        await moves.choose(directory, database, "second")
    await cells.change(directory, "second", CellChange(state=CellState.ACTIVE))
    assert (await moves.choose(directory, database, "second")).id == second.id
    await databases.suspend(directory, database)
    suspended = await databases.get(directory, database.id)
    assert (await moves.choose(directory, suspended, "second")).id == second.id
    await databases.delete(directory, database, restore_s=60, restorable=True)
    with pytest.raises(ConflictError):
        await moves.choose(directory, await databases.get(directory, database.id), "second")
