"""What a cell is doing, as its admin sees it: connections, statements, replication, settings.

    async with watching(conninfo, admin_role) as connection:
        print(await view(connection))

The queries read only PostgreSQL's own views. `end_statement` cancels or terminates a tenant's backend, and no other.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.errors import QueryCanceled

from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE, STREAM_ROLE
from plainsql_server.engine.admin.provisioning import admin_connection
from plainsql_server.engine.connection.interrupt import AWAITS_NO_STANDBY
from plainsql_server.engine.connection.sqlstate import engine_unavailable

# A cell that takes longer hangs.
_ANSWER_TIMEOUT_S = 30.0
# PostgreSQL looks at each file of each database. With 10,000 databases, these are three million.
_SIZE_TIMEOUT_S = 10

# Matches the roles that provisioning creates for tenants' databases, those of backups included.
TENANT_ROLE = "^[bor]_[0-9a-f]{24}$"
# A backup's role counts as the owner's.
_COUNTED_ROLE = "regexp_replace(usename, '^b_', 'o_')"

_LOAD = f"""
    SELECT count(*) FILTER (WHERE usename ~ '{TENANT_ROLE}') AS tenants,
           count(*) AS connections,
           count(*) FILTER (WHERE state = 'active' AND usename ~ '{TENANT_ROLE}') AS running,
           count(*) FILTER (WHERE wait_event_type = 'Lock') AS waiting_for_locks,
           coalesce(extract(epoch FROM max(now() - xact_start)), 0)::float8 AS oldest_transaction_s
    FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_SELF = """
    SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS is_standby,
           current_setting('max_connections')::int AS max_connections,
           (SELECT count(*) FROM pg_prepared_xacts) AS prepared_transactions
"""
_SIZE = "SELECT sum(pg_database_size(oid))::bigint AS size_bytes FROM pg_database"
_REPLICAS = f"""
    SELECT application_name AS name, state, sync_state,
           pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint AS behind_bytes
    FROM pg_stat_replication WHERE usename IS DISTINCT FROM '{STREAM_ROLE}' ORDER BY application_name
"""
_STATEMENTS = f"""
    SELECT pid, {_COUNTED_ROLE} AS role, state, query, wait_event_type AS waits_for,
           extract(epoch FROM clock_timestamp() - coalesce(query_start, backend_start))::float8 AS elapsed_s
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND usename ~ '{TENANT_ROLE}' ORDER BY query_start
"""


@dataclass(frozen=True, slots=True)
class Replica:
    """A standby of the cell's primary."""

    name: str
    state: str
    sync_state: str
    behind_bytes: int | None


@dataclass(frozen=True, slots=True)
class CellView:
    """The state of a cell at one point in time."""

    version: str
    is_standby: bool
    max_connections: int
    connections: int
    tenants: int
    running: int
    waiting_for_locks: int
    oldest_transaction_s: float
    prepared_transactions: int
    # The host that answered. If the cell has several, it is the primary.
    server: str
    replicas: list[Replica]
    # None if nobody asked for it, or if it takes too long.
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A tenant's backend and its current statement. `query` is the SQL as sent, without parameter values."""

    pid: int
    role: str
    state: str
    query: str
    waits_for: str | None
    elapsed_s: float


@asynccontextmanager
async def watching(conninfo: str, admin_role: str) -> AsyncIterator[AsyncConnection]:
    """A connection for queries to a cell. Raises EngineError if the cell is unavailable, or if the block times out."""
    try:
        async with (
            asyncio.timeout(_ANSWER_TIMEOUT_S),
            admin_connection(conninfo, admin_role, MAINTENANCE_DATABASE) as connection,
        ):
            yield connection
    except TimeoutError as error:
        raise engine_unavailable(
            f"the server accepted a connection, but did not answer within {_ANSWER_TIMEOUT_S:g} s"
        ) from error


async def view(connection: AsyncConnection) -> CellView:
    """Returns the state of the cell."""
    (itself,) = await rows(connection, _SELF)
    (load,) = await rows(connection, _LOAD)
    replicas = [] if itself["is_standby"] else [Replica(**row) for row in await rows(connection, _REPLICAS)]
    server = f"{connection.info.host}:{connection.info.port}"
    return CellView(**itself, **load, server=server, replicas=replicas)


async def size_bytes(connection: AsyncConnection) -> int | None:
    """The size of all databases of the cell, or None if there are so many that it takes too long."""
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL statement_timeout = '{_SIZE_TIMEOUT_S}s'")
            (found,) = await rows(connection, _SIZE)
    except QueryCanceled:
        return None
    return int(found["size_bytes"])


async def statements(connection: AsyncConnection) -> list[Running]:
    """All tenants' backends, the longest-running statement first."""
    return [Running(**row) for row in await rows(connection, _STATEMENTS)]


async def end_statement(connection: AsyncConnection, pid: int, roles: Sequence[str], *, terminate: bool) -> bool:
    """Cancels a backend's statement, or terminates the backend. Returns False if it is not a client of these roles.

    A backend that waits for a standby is left alone, too.
    """
    act = "pg_terminate_backend" if terminate else "pg_cancel_backend"
    # Check and act in one statement: by the next one, another backend may have the same process id.
    statement = f"""
        SELECT {act}(pid) FROM pg_stat_activity
        WHERE pid = %s AND {_COUNTED_ROLE} = ANY(%s) AND backend_type = 'client backend' AND {AWAITS_NO_STANDBY}
    """
    return (await connection.execute(statement, (pid, list(roles)))).rowcount == 1


async def rows(connection: AsyncConnection, query: str, *arguments: Any) -> list[dict[str, Any]]:
    """The rows of a query, as dictionaries by column name."""
    cursor = await connection.execute(query, arguments or None)
    names = [column.name for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]
