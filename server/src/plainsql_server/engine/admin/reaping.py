"""Finds and ends old transactions, idle connections, lock hoarders and prepared transactions on a cell, as its admin.

A backend is terminated by process id *and* start time, so a backend that has reused the id is left alone. Only
PostgreSQL's own views are read: no tenant's objects and no tenant's SQL text. The limits are in
`control_plane/reaping.py`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from plainsql_server.core.errors import EngineError, InternalError, described
from plainsql_server.core.sockets import cut_if_silent
from plainsql_server.engine.admin.backups import BACKUP, KEEPER, MOVE, RESTORE
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.interrupt import AWAITS_NO_STANDBY
from plainsql_server.engine.connection.sqlstate import engine_unavailable
from plainsql_server.engine.execution.spanning import read_end
from plainsql_server.engine.pool.address import Address, hosts_of
from plainsql_server.engine.pool.leader import leading

# Matches the roles that provisioning creates for tenants' databases, and never an operator's role.
_TENANT = "^[bor]_[0-9a-f]{24}$"
# A cell that takes longer counts as unavailable. libpq accepts whole seconds and treats 1 as 2.
_CONNECT_TIMEOUT_S = 2
# No query takes even a tenth of a second. One that hangs must not hold up the checks of other cells.
_STATEMENT_TIMEOUT_MS = 5_000
# Nor must a server that does not respond at all, not even with a timeout error.
_NO_REPLY_S = 6.0
# Nor must the wait for a standby that is down.
_END_TIMEOUT_S = 5.0
# An advisory lock held by the process that watches a cell, so that other control processes do not watch it as well.
_LOCK = 7_040_320_155_210_118_713

# pg_stat_activity without its joins, which read the names of all roles and databases: with 10,000 databases, that is
# most of the work. Here only the roles of open connections are looked up.
_ACTIVITY = "(SELECT *, pg_get_userbyid(usesysid)::text AS role FROM pg_stat_get_activity(NULL))"
# An operator's backup, restore or move runs with the tenant's privileges. It is recognized by the admin's keeper
# connection to the same database, because a tenant could set the same application_name.
_UNATTENDED = f"""
    NOT EXISTS (
        SELECT FROM {_ACTIVITY} b
        WHERE b.role = current_user AND b.datid = a.datid
          AND a.application_name IN ('{BACKUP}', '{RESTORE}', '{MOVE}')
          AND b.application_name = a.application_name || '{KEEPER}')
"""
_TRANSACTIONS = f"""
    SELECT pid, backend_start, role, extract(epoch FROM clock_timestamp() - xact_start)::float8,
           backend_xid IS NOT NULL
    FROM {_ACTIVITY} a
    WHERE clock_timestamp() - xact_start > %(older_than_s)s * interval '1 second' AND role ~ %(tenant)s
      AND {_UNATTENDED}
"""
# A backend that waits for a standby has committed. Terminating it would make visible what a failover may still lose.
_END = f"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = %s AND backend_start = %s AND {AWAITS_NO_STANDBY}
"""
_END_IDLE = f"""
    SELECT pg_terminate_backend(pid) FROM {_ACTIVITY} a
    WHERE state = 'idle' AND clock_timestamp() - state_change > %(longer_than_s)s * interval '1 second'
      AND role ~ %(tenant)s
      AND {_UNATTENDED}
"""
# Counts locks first, and joins only the few backends that hold many.
_LOCKERS = f"""
    SELECT a.pid, a.backend_start, a.role, l.locks
    FROM (SELECT pid, count(*) AS locks FROM pg_locks WHERE granted GROUP BY pid HAVING count(*) > %(more_than)s) AS l
    JOIN {_ACTIVITY} a ON a.pid = l.pid AND a.role ~ %(tenant)s
    WHERE {_UNATTENDED}
"""
# Autovacuum workers that call a tenant's functions, in expressions of indexes and statistics. None of PostgreSQL's
# timeouts applies to them.
_RUNNING_TENANTS_CODE = """
    SELECT a.pid, a.backend_start, a.query
    FROM pg_stat_get_activity(NULL) a LEFT JOIN pg_stat_progress_analyze p ON p.pid = a.pid
    WHERE a.backend_type = 'autovacuum worker'
      AND (p.phase ~ '^computing' OR a.query ~ '^autovacuum: BRIN summarize')
"""
_PREPARED = """
    SELECT gid, database::text FROM pg_prepared_xacts
    WHERE clock_timestamp() - prepared > %s * interval '1 second'
"""
# Without a condition on age: the caller frees what is not found, and the clock may have been set back.
_WHERE_PREPARED = "SELECT database::text FROM pg_prepared_xacts WHERE gid = %s"


@dataclass(frozen=True, slots=True)
class OldTransaction:
    """A tenant's transaction that has been open for a long time."""

    pid: int
    backend_start: datetime
    role: str
    age_s: float
    has_written: bool


@dataclass(frozen=True, slots=True)
class Locker:
    """A tenant's backend that holds many locks."""

    pid: int
    backend_start: datetime
    role: str
    locks: int


class CellWatch:
    """A connection to a cell's maintenance database, kept open for the checks."""

    def __init__(self, connection: "AsyncConnection[tuple[Any, ...]]", conninfo: str, admin_role: str) -> None:
        self._connection = connection
        self._conninfo = conninfo
        self._admin_role = admin_role
        # When each autovacuum worker was first seen running a tenant's code.
        self._maintained_since_s: dict[tuple[Any, ...], float] = {}

    @classmethod
    @asynccontextmanager
    async def beside(cls, conninfo: str, admin_role: str) -> AsyncIterator[Self]:
        """An additional connection, even while another process holds the watch lock.

        Raises EngineError if the cell is unavailable.
        """
        leaders = await _leaders(conninfo, admin_role)
        connection = await _connect(leaders, admin_role, "postgres")
        async with connection:
            yield cls(connection, leaders, admin_role)

    @classmethod
    async def open(cls, conninfo: str, admin_role: str) -> Self | None:
        """Takes the watch lock of a cell. Returns None if another process holds it.

        Raises EngineError if the cell is unavailable.
        """
        connection = await _connect(conninfo, admin_role, "postgres")
        watch = cls(connection, conninfo, admin_role)
        ((is_ours,),) = await watch._rows("SELECT pg_try_advisory_lock(%s)", (_LOCK,))
        if not is_ours:
            await connection.close()
            return None
        return watch

    async def close(self) -> None:
        await self._connection.close()

    async def old_transactions(self, older_than_s: float) -> list[OldTransaction]:
        """Tenants' transactions that are older than `older_than_s`."""
        rows = await self._rows(_TRANSACTIONS, {"tenant": _TENANT, "older_than_s": older_than_s})
        return [OldTransaction(*row) for row in rows]

    async def end(self, found: OldTransaction | Locker) -> bool:
        """Terminates the backend. Returns False if it is gone, or waits for a standby."""
        return len(await self._rows(_END, (found.pid, found.backend_start))) > 0

    async def end_idle(self, longer_than_s: float) -> int:
        """Terminates tenants' connections that have been idle for longer. Returns how many."""
        return len(await self._rows(_END_IDLE, {"tenant": _TENANT, "longer_than_s": longer_than_s}))

    async def lockers(self, more_than: int) -> list[Locker]:
        """Tenants' backends that hold more than `more_than` locks."""
        return [Locker(*row) for row in await self._rows(_LOCKERS, {"tenant": _TENANT, "more_than": more_than})]

    async def end_maintenance(self, longer_than_s: float) -> int:
        """Terminates autovacuum workers that have been seen running a tenant's code for longer. Returns how many."""
        now_s, before = time.monotonic(), self._maintained_since_s
        found = {row: before.get(row, now_s) for row in await self._rows(_RUNNING_TENANTS_CODE, ())}
        self._maintained_since_s = found
        # Terminate rather than cancel: the tenant's code could trap a cancel.
        too_long = [row for row, since_s in found.items() if now_s - since_s > longer_than_s]
        return sum([len(await self._rows(_END, (pid, start))) for pid, start, _ in too_long])

    async def prepared(self, older_than_s: float) -> list[tuple[str, str]]:
        """Transactions that have been prepared for longer, as (gid, database)."""
        return [(gid, database) for gid, database in await self._rows(_PREPARED, (older_than_s,))]

    async def where_prepared(self, gid: str) -> list[str]:
        """The database in which a transaction with this gid is prepared, or an empty list."""
        return [database for (database,) in await self._rows(_WHERE_PREPARED, (gid,))]

    async def roll_back_prepared(self, prepared: Sequence[tuple[str, str]]) -> int:
        """Rolls back these prepared transactions. Returns how many still existed."""
        return sum([await self.end_prepared(gid, database, commit=False) for gid, database in prepared])

    async def end_prepared(self, gid: str, database: str, *, commit: bool) -> bool:
        """Commits or rolls back a prepared transaction. Returns False if it had already ended.

        Raises ServiceError unless it is known to have ended. A wait for a standby must not be cancelled, as any timeout
        of PostgreSQL or the driver would do: the server would then report success without the standby. Instead the
        connection is closed after a timeout, the backend goes on waiting, and a later call asks again.
        """
        # PostgreSQL allows this only in the transaction's own database. It runs no code of a tenant.
        there = await _connect(self._conninfo, self._admin_role, database, statement_timeout_ms=0)
        command = sql.SQL("COMMIT PREPARED {}" if commit else "ROLLBACK PREPARED {}").format(sql.Literal(gid))
        there.pgconn.enter_pipeline_mode()
        connection = Connection(there.pgconn)
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                connection.send_query(command.as_bytes(there))
                connection.sync()
                return await read_end(connection)
        except TimeoutError:
            raise engine_unavailable("reaping: COMMIT PREPARED or ROLLBACK PREPARED timed out") from None
        finally:
            connection.close()

    async def _rows(self, query: str, arguments: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            with cut_if_silent(self._connection.fileno(), _NO_REPLY_S):
                cursor = await self._connection.execute(query, arguments)
                return await cursor.fetchall()
        except psycopg.Error as error:
            raise _as_service_error(error) from error


async def _leaders(conninfo: str, admin_role: str) -> str:
    """The connection string of the primary. The driver would spend its timeout on the first host that is down."""
    hosts = hosts_of(conninfo)
    if len(hosts) == 1:
        return conninfo
    conninfos = Address(conninfo, "postgres", admin_role).conninfos(_CONNECT_TIMEOUT_S * 1000)
    return make_conninfo(conninfo, **hosts[await leading(conninfos, _CONNECT_TIMEOUT_S)])


async def _connect(
    conninfo: str, admin_role: str, database: str, statement_timeout_ms: int = _STATEMENT_TIMEOUT_MS
) -> "AsyncConnection[tuple[Any, ...]]":
    # Sent at startup, these settings override what a tenant may have stored with ALTER DATABASE.
    options = f"-c search_path=pg_catalog,pg_temp -c synchronous_commit=on -c statement_timeout={statement_timeout_ms}"
    try:
        return await AsyncConnection.connect(
            conninfo, user=admin_role, dbname=database, autocommit=True, options=options,
            connect_timeout=_CONNECT_TIMEOUT_S, application_name="plainsql-reaper",
        )  # fmt: skip
    except psycopg.Error as error:
        raise _as_service_error(error) from error


def _as_service_error(error: psycopg.Error) -> EngineError | InternalError:
    if isinstance(error, psycopg.OperationalError):
        return engine_unavailable(f"reaping: {described(error)}")
    return InternalError(f"reaping: {described(error)}")
