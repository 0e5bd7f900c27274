"""Every state and every action, tried: what the tables in `control_plane/states.py` allow happens, and nothing else."""

from collections.abc import Awaitable, Callable

import psycopg
import pytest

from plainsql_server.control_plane import databases, keys, organizations, sessions
from plainsql_server.control_plane.states import (
    DATABASE_TRANSITIONS,
    KEY_TRANSITIONS,
    SESSION_TRANSITIONS,
    CredentialAction,
    CredentialState,
    DatabaseAction,
)
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, ServiceError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory import cells as stored_cells
from plainsql_server.directory import databases as stored
from plainsql_server.directory.cells import CellChange, CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState, NewDatabase
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.principals import Principals
from plainsql_server.engine.admin import provisioning

DatabaseWork = Callable[[Directory, DatabaseRecord], Awaitable[object]]


async def put(directory: Directory, dsn: str, cell: CellRecord, state: DatabaseState) -> DatabaseRecord:
    """A database in that state, as far as the directory is concerned."""
    organization = await organizations.create(directory, f"Acme {state}", "dedicated")
    names = provisioning.new_names()
    new = NewDatabase(
        id=f"db_{names.database[2:]}", organization_id=organization.id, name="main", cell_id=cell.id,
        engine_name=names.database, owner_role=names.owner_role, reader_role=names.reader_role,
    )  # fmt: skip
    assert await stored.insert(directory, new, None, 0, OPERATOR)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE databases SET state = %s, is_default = false,"
            " restores_to = CASE WHEN %s = 'deleting' THEN 'ready' END,"
            " restorable_until = CASE WHEN %s = 'deleting' THEN now() + interval '1 hour' END WHERE id = %s",
            (state, state, state, new.id),
        )
    return await databases.get(directory, new.id)


async def fail(directory: Directory, database: DatabaseRecord) -> None:
    """An attempt to finish it while its cell is away."""
    cell = await stored_cells.find(directory, database.cell_id)
    assert cell is not None
    await stored_cells.change(directory, cell.id, CellChange(conninfo="host=/nowhere"), only_from=[])
    with pytest.raises(EngineError):
        await databases.finish(directory, database)
    await stored_cells.change(directory, cell.id, CellChange(conninfo=cell.conninfo), only_from=[])


async def give_up_and_drop(directory: Directory, database: DatabaseRecord) -> None:
    await stored.give_up(directory, database.id, OPERATOR)
    await databases.drop(directory, database)


WORK: dict[DatabaseAction, DatabaseWork] = {
    DatabaseAction.FINISH: databases.finish,
    DatabaseAction.FAIL: fail,
    DatabaseAction.RENAME: lambda directory, it: databases.rename(directory, it, "renamed", OPERATOR),
    DatabaseAction.MAKE_DEFAULT: lambda directory, it: databases.make_default(directory, it, OPERATOR),
    DatabaseAction.SUSPEND: databases.suspend,
    DatabaseAction.RESUME: databases.resume,
    DatabaseAction.DELETE: lambda directory, it: databases.delete(directory, it, restore_s=60, restorable=True),
    DatabaseAction.RESTORE: databases.restore,
    DatabaseAction.DROP: give_up_and_drop,
}
# No caller requests these, so they never report that there was nothing to do.
SILENT = frozenset([DatabaseAction.FINISH, DatabaseAction.FAIL, DatabaseAction.DROP])


@pytest.mark.parametrize("state", DatabaseState)
@pytest.mark.parametrize("action", DatabaseAction)
async def test_a_database_allows_only_the_transitions_in_the_table(
    directory: Directory, dsn: str, cell: CellRecord, state: DatabaseState, action: DatabaseAction
) -> None:
    database = await put(directory, dsn, cell, state)
    expected = DATABASE_TRANSITIONS.get((state, action))
    if expected is None and action not in SILENT:
        with pytest.raises(AccessError if state is DatabaseState.DELETED else ConflictError):
            await WORK[action](directory, database)
    else:
        await WORK[action](directory, database)
    after = await databases.get(directory, database.id)
    assert after.state in (expected or {state})


async def test_a_database_that_was_suspended_is_suspended_again_when_it_is_restored(
    directory: Directory, dsn: str, cell: CellRecord
) -> None:
    database = await put(directory, dsn, cell, DatabaseState.SUSPENDED)
    await databases.delete(directory, database, restore_s=60, restorable=True)
    assert (await databases.restore(directory, database)).state is DatabaseState.SUSPENDED


async def test_every_action_is_tested_and_every_state_but_the_last_can_be_left() -> None:
    assert set(WORK) == set(DatabaseAction)
    changing = {state for (state, _), after in DATABASE_TRANSITIONS.items() if after != {state}}
    assert changing == set(DatabaseState) - {DatabaseState.DELETED}


class Credentials:
    """A key and a session of it, which can be put into any state, and who they stand for then."""

    def __init__(self, directory: Directory, dsn: str) -> None:
        self.directory = directory
        self._dsn = dsn
        self._principals = Principals(directory, Freshness(0, 0, 0))
        self.organization_id = self.key_id = self.key = self.session_id = self.token = ""

    async def make(self) -> None:
        self.organization_id = (await organizations.create(self.directory, "Acme", "free")).id
        record, secret = await keys.create(self.directory, self.organization_id, "app", [Scope.READ])
        self.key_id, self.key = record.id, secret.text
        session, token = await sessions.create(self.directory, record.principal(), OPERATOR, None, None)
        self.session_id, self.token = session.id, token.text

    def put(self, table: str, row: str, state: CredentialState) -> None:
        end = {"api_keys": "revoked_at", "sessions": "ended_at"}[table]
        change = {
            CredentialState.ACTIVE: "id = id",
            CredentialState.EXPIRED: "created_at = now() - interval '2 s', expires_at = now() - interval '1 s'",
            CredentialState.ENDED: f"{end} = now()",
        }[state]
        with psycopg.connect(self._dsn) as connection:
            connection.execute(f"UPDATE {table} SET {change} WHERE id = %s", (row,))

    async def principal(self, secret: str) -> Principal:
        """Who shows that secret. Raises AccessError if it is nobody, as the HTTP edge does."""
        found = await self._principals.find(secret)
        if found is None:
            raise AccessError("unauthenticated", "nobody")
        return found

    async def state(self, table: str, row: str) -> CredentialState:
        end = {"api_keys": "revoked_at", "sessions": "ended_at"}[table]
        with psycopg.connect(self._dsn) as connection:
            found = connection.execute(f"SELECT {end} IS NULL, expires_at <= now() FROM {table} WHERE id = %s", (row,))
            ((open_ended, expired),) = found.fetchall()
        if not open_ended:
            return CredentialState.ENDED
        return CredentialState.EXPIRED if expired else CredentialState.ACTIVE


@pytest.fixture
async def credentials(directory: Directory, dsn: str) -> Credentials:
    made = Credentials(directory, dsn)
    await made.make()
    return made


async def do_with_key(credentials: Credentials, action: CredentialAction) -> None:
    directory, organization_id, key_id = credentials.directory, credentials.organization_id, credentials.key_id
    match action:
        case CredentialAction.USE:
            await credentials.principal(credentials.key)
        case CredentialAction.EXCHANGE:
            await sessions.create(directory, await credentials.principal(credentials.key), OPERATOR, None, None)
        case CredentialAction.REFRESH:
            await sessions.refresh(directory, await credentials.principal(credentials.key), OPERATOR)
        case CredentialAction.ROTATE:
            await keys.rotate(directory, organization_id, key_id, sessions.LIFE, OPERATOR)
        case CredentialAction.END:
            await keys.revoke(directory, key_id, organization_id)


async def do_with_session(credentials: Credentials, action: CredentialAction) -> None:
    principal = await credentials.principal(credentials.token)
    match action:
        case CredentialAction.USE:
            return
        case CredentialAction.EXCHANGE:
            await sessions.create(credentials.directory, principal, OPERATOR, None, None)
        case CredentialAction.REFRESH:
            await sessions.refresh(credentials.directory, principal, OPERATOR)
        case CredentialAction.ROTATE:
            await keys.rotate(
                credentials.directory, principal.organization_id, str(principal.session_id), sessions.LIFE, OPERATOR
            )
        case CredentialAction.END:
            await sessions.end(credentials.directory, principal, OPERATOR)


@pytest.mark.parametrize("state", CredentialState)
@pytest.mark.parametrize("action", CredentialAction)
async def test_a_key_allows_only_the_transitions_in_the_table(
    credentials: Credentials, state: CredentialState, action: CredentialAction
) -> None:
    credentials.put("api_keys", credentials.key_id, state)
    expected = KEY_TRANSITIONS.get((state, action))
    if expected is None:
        with pytest.raises(ServiceError):
            await do_with_key(credentials, action)
    else:
        await do_with_key(credentials, action)
    assert await credentials.state("api_keys", credentials.key_id) is (expected or state)


@pytest.mark.parametrize("state", CredentialState)
@pytest.mark.parametrize("action", CredentialAction)
async def test_a_session_allows_only_the_transitions_in_the_table(
    credentials: Credentials, state: CredentialState, action: CredentialAction
) -> None:
    credentials.put("sessions", credentials.session_id, state)
    expected = SESSION_TRANSITIONS.get((state, action))
    if expected is None:
        with pytest.raises(AccessError):
            await do_with_session(credentials, action)
    else:
        await do_with_session(credentials, action)
    assert await credentials.state("sessions", credentials.session_id) is (expected or state)


@pytest.mark.parametrize("state", [CredentialState.EXPIRED, CredentialState.ENDED])
async def test_a_session_ends_with_its_key(credentials: Credentials, state: CredentialState) -> None:
    await credentials.principal(credentials.token)
    credentials.put("api_keys", credentials.key_id, state)
    with pytest.raises(AccessError):
        await credentials.principal(credentials.token)
