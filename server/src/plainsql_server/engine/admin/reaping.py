"""Looking at a cell as its admin, and ending what nobody will end any more.

Owns the questions that are asked of a cell's own views, and the ending. What is ended is named by process id *and*
start, so that a process which got the number meanwhile is left alone. Reads no tenant's object and no SQL text.
Refuses to know ceilings; `control_plane/reaping.py` does.
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

from plainsql_server.core.errors import EngineError, InternalError
from plainsql_server.core.shutdown_on_timeout import cut_if_silent
from plainsql_server.engine.admin.backups import BACKUP, KEEPER, MOVE, RESTORE
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.interrupt import AWAITS_NO_STANDBY
from plainsql_server.engine.connection.sqlstate import engine_away
from plainsql_server.engine.execution.spanning import read_end
from plainsql_server.engine.pool.address import Address, hosts_of
from plainsql_server.engine.pool.leader import leading

# As `provisioning.new_names` makes them: no role of an operator's is ever touched.
_TENANT = "^[or]_[0-9a-f]{24}$"
# A cell that takes longer is away. libpq counts whole seconds and takes 1 for 2.
_CONNECT_TIMEOUT_S = 2
# No question takes a tenth of a second; one that hangs must not hang the looking at other cells.
_STATEMENT_TIMEOUT_MS = 5_000
# And an engine that says nothing at all, not even that.
_SILENCE_S = 6.0
# Nor must the wait for a standby that is away.
_END_TIMEOUT_S = 5.0
# Taken by the one who looks at a cell, so that several control processes do not do it twice.
_LOCK = 7_040_320_155_210_118_713

# An operator's backup, restore or move works as the tenant. That it is one says not its own name, which a tenant could
# take, but the admin's connection beside it.
_UNATTENDED = f"""
    NOT EXISTS (
        SELECT FROM pg_stat_activity b
        WHERE b.usename = current_user AND b.datname = a.datname
          AND a.application_name IN ('{BACKUP}', '{RESTORE}', '{MOVE}')
          AND b.application_name = a.application_name || '{KEEPER}')
"""
_TRANSACTIONS = f"""
    SELECT pid, backend_start, usename::text, extract(epoch FROM clock_timestamp() - xact_start)::float8,
           backend_xid IS NOT NULL
    FROM pg_stat_activity a
    WHERE usename ~ %(tenant)s AND clock_timestamp() - xact_start > %(older_than_s)s * interval '1 second'
      AND {_UNATTENDED}
"""
# What waits for a standby has committed. Ending the wait would show what may still be lost.
_END = f"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = %s AND backend_start = %s AND {AWAITS_NO_STANDBY}
"""
_END_IDLE = f"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity a
    WHERE usename ~ %(tenant)s AND state = 'idle'
      AND clock_timestamp() - state_change > %(longer_than_s)s * interval '1 second'
      AND {_UNATTENDED}
"""
# Counted first, and then only the few with many are looked at.
_LOCKERS = f"""
    SELECT a.pid, a.backend_start, a.usename::text, l.locks
    FROM (SELECT pid, count(*) AS locks FROM pg_locks WHERE granted GROUP BY pid HAVING count(*) > %(more_than)s) AS l
    JOIN pg_stat_activity a ON a.pid = l.pid AND a.usename ~ %(tenant)s
    WHERE {_UNATTENDED}
"""
# Maintenance of the engine's own that calls functions of a tenant's: those in the expressions of its indexes and
# statistics. No time limit of PostgreSQL's applies to it.
_RUNNING_TENANTS_CODE = """
    SELECT a.pid, a.backend_start, a.query
    FROM pg_stat_activity a LEFT JOIN pg_stat_progress_analyze p ON p.pid = a.pid
    WHERE a.backend_type = 'autovacuum worker'
      AND (p.phase ~ '^computing' OR a.query ~ '^autovacuum: BRIN summarize')
"""
_PREPARED = """
    SELECT gid, database::text FROM pg_prepared_xacts
    WHERE clock_timestamp() - prepared > %s * interval '1 second'
"""
# Without its age: whoever asks frees what is not found, and a clock may have gone back.
_WHERE_PREPARED = "SELECT database::text FROM pg_prepared_xacts WHERE gid = %s"


@dataclass(frozen=True, slots=True)
class OldTransaction:
    """A transaction that has been open for long."""

    pid: int
    backend_start: datetime
    role: str
    age_s: float
    has_written: bool


@dataclass(frozen=True, slots=True)
class Locker:
    """A tenant's connection that holds many locks."""

    pid: int
    backend_start: datetime
    role: str
    locks: int


class CellWatch:
    """One connection to a cell, kept for looking."""

    def __init__(self, connection: "AsyncConnection[tuple[Any, ...]]", conninfo: str, admin_role: str) -> None:
        self._connection = connection
        self._conninfo = conninfo
        self._admin_role = admin_role
        # Since when each piece of maintenance has been seen at it.
        self._maintained_since_s: dict[tuple[Any, ...], float] = {}

    @classmethod
    @asynccontextmanager
    async def beside(cls, conninfo: str, admin_role: str) -> AsyncIterator[Self]:
        """A second look at the cell, whoever has the watch. Raises EngineError if the cell is away."""
        leaders = await _leaders(conninfo, admin_role)
        connection = await _connect(leaders, admin_role, "postgres")
        async with connection:
            yield cls(connection, leaders, admin_role)

    @classmethod
    async def open(cls, conninfo: str, admin_role: str) -> Self | None:
        """A watch on the cell, or None if another process has it. Raises EngineError if the cell is away."""
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
        """Tenants' transactions that are older than that."""
        rows = await self._rows(_TRANSACTIONS, {"tenant": _TENANT, "older_than_s": older_than_s})
        return [OldTransaction(*row) for row in rows]

    async def end(self, found: OldTransaction | Locker) -> bool:
        """Ends its backend; False if it was gone."""
        return len(await self._rows(_END, (found.pid, found.backend_start))) > 0

    async def end_idle(self, longer_than_s: float) -> int:
        """Ends tenants' connections that have been idle for longer; how many."""
        return len(await self._rows(_END_IDLE, {"tenant": _TENANT, "longer_than_s": longer_than_s}))

    async def lockers(self, more_than: int) -> list[Locker]:
        """Tenants' connections that hold more locks than that."""
        return [Locker(*row) for row in await self._rows(_LOCKERS, {"tenant": _TENANT, "more_than": more_than})]

    async def end_maintenance(self, longer_than_s: float) -> int:
        """Ends automatic maintenance that has been seen running a tenant's code for longer; how much."""
        now_s, before = time.monotonic(), self._maintained_since_s
        found = {row: before.get(row, now_s) for row in await self._rows(_RUNNING_TENANTS_CODE, ())}
        self._maintained_since_s = found
        # A cancel could be trapped.
        too_long = [row for row, since_s in found.items() if now_s - since_s > longer_than_s]
        return sum([len(await self._rows(_END, (pid, start))) for pid, start, _ in too_long])

    async def prepared(self, older_than_s: float) -> list[tuple[str, str]]:
        """Transactions that have been prepared for longer, by name and database."""
        return [(gid, database) for gid, database in await self._rows(_PREPARED, (older_than_s,))]

    async def where_prepared(self, gid: str) -> list[str]:
        """The database in which a transaction of that name is prepared, if there is one."""
        return [database for (database,) in await self._rows(_WHERE_PREPARED, (gid,))]

    async def roll_back_prepared(self, prepared: Sequence[tuple[str, str]]) -> int:
        """Rolls these back; how many there still were."""
        return sum([await self.end_prepared(gid, database, commit=False) for gid, database in prepared])

    async def end_prepared(self, gid: str, database: str, *, commit: bool) -> bool:
        """Ends a prepared transaction; False if somebody else did. Raises ServiceError unless it is known to be ended.

        That it waits for a standby is nothing to cancel, as every time limit of the engine's or the driver's would:
        the engine would be content with itself then. It is left alone instead, and somebody asks again.
        """
        # It can be done in its own database only. Nothing of a tenant's runs by that.
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
            raise engine_away("reaping: what ends a prepared transaction takes too long") from None
        finally:
            connection.close()

    async def _rows(self, query: str, arguments: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            with cut_if_silent(self._connection.fileno(), _SILENCE_S):
                cursor = await self._connection.execute(query, arguments)
                return await cursor.fetchall()
        except psycopg.Error as error:
            raise _as_service_error(error) from error


async def _leaders(conninfo: str, admin_role: str) -> str:
    """The way to the server that leads: the driver would spend its time on the first host that does not answer."""
    hosts = hosts_of(conninfo)
    if len(hosts) == 1:
        return conninfo
    ways = Address(conninfo, "postgres", admin_role).ways(_CONNECT_TIMEOUT_S * 1000)
    return make_conninfo(conninfo, **hosts[await leading(ways, _CONNECT_TIMEOUT_S)])


async def _connect(
    conninfo: str, admin_role: str, database: str, statement_timeout_ms: int = _STATEMENT_TIMEOUT_MS
) -> "AsyncConnection[tuple[Any, ...]]":
    # Given at start-up, they win over what a tenant may have stored for its database.
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
        return engine_away(f"reaping: {str(error).strip()}")
    return InternalError(f"reaping: {type(error).__name__}: {error}")
