"""Connections to the directory: a small pool, with timeouts. Converts driver errors to service errors.

async with Directory.open(dsn) as directory, directory.connection() as connection:
    await connection.execute("SELECT 1")
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

import psycopg
from psycopg import AsyncConnection, IsolationLevel, errors
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from plainsql_server.core.errors import (
    RETRY_AFTER_MS,
    EngineError,
    InternalError,
    ServiceError,
    described,
    without_detail,
)
from plainsql_server.core.sockets import cut_if_silent
from plainsql_server.directory.rights.checking import missing
from plainsql_server.directory.rights.grants import Role
from plainsql_server.directory.sealing.keyring import Keyring

# A lookup takes about a millisecond. Two seconds distinguish an unavailable directory from a busy one, and leave the
# caller most of the free tier's statement deadline of 10 s.
_CHECKOUT_TIMEOUT_S = 2.0

# libpq uses whole seconds and treats 1 as 2.
_CONNECT_TIMEOUT_S = 2

# None of our statements should come near this. One that does is stuck behind a lock.
_STATEMENT_TIMEOUT_MS = 5_000

_CHECK_TIMEOUT_S = 2.0

# A directory that is older than this version, or was restored and not migrated since, which grants the rights.
_NOT_MIGRATED = (
    errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction, errors.InsufficientPrivilege,
)  # fmt: skip

# Detects a host that disappears within seconds instead of the kernel's quarter of an hour.
_KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 2, "tcp_user_timeout": 5_000}

# The pool logs each failed connection attempt. Keep that off the terminal; the caller gets the reason with the error.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class DirectoryConnection(AsyncConnection[DictRow]):
    """A connection to the directory. The class keeps the reason of the last failed attempt, which the pool hides."""

    last_failure: ClassVar[str] = ""

    @classmethod
    async def connect(cls, conninfo: str = "", **arguments: Any) -> Self:
        try:
            return await super().connect(conninfo, **arguments)
        except psycopg.Error as error:
            cls.last_failure = without_detail(str(error))
            raise


_Pool = AsyncConnectionPool[DirectoryConnection]


class Directory:
    """The directory database, with a pool of connections."""

    def __init__(self, pool: _Pool, role: Role | None = None, secrets: Keyring | None = None) -> None:
        self._pool = pool
        self.secrets = secrets or Keyring()
        """Seals and opens the record secrets of databases."""
        # The role whose rights `check` looks for, until it has found them.
        self._unchecked_role = role

    @classmethod
    @asynccontextmanager
    async def open(
        cls, dsn: str, max_connections: int = 4, role: Role | None = None, secrets: Keyring | None = None
    ) -> AsyncIterator[Self]:
        """The directory for the length of the block. Does not wait for a connection; the first request does.

        With a role, `check` also checks that the login has that role's rights. Without `secrets`, record secrets are
        neither sealed nor opened.
        """
        pool = _new_pool(dsn, max_connections)
        await pool.open(wait=False)
        try:
            yield cls(pool, role, secrets)
        finally:
            await pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[DirectoryConnection]:
        """A connection in autocommit mode. Use its `transaction()` to group statements.

        Raises EngineError if the directory is unavailable (within a few seconds), InternalError if our own SQL failed.
        Cancelling it discards the connection if a statement was running.
        """
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests) as error:
            raise as_service_error(error) from error

    async def check(self) -> None:
        """Raises EngineError or InternalError unless the directory answers, and has its schema and the rights."""
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S), self.connection() as connection:
                await connection.execute("SELECT FROM tiers LIMIT 1")
                await self._check_rights(connection)
        except TimeoutError as error:
            raise directory_unavailable(
                f"directory: no response in time; the last failure: {DirectoryConnection.last_failure}"
            ) from error

    async def _check_rights(self, connection: DirectoryConnection) -> None:
        if self._unchecked_role is None:
            return
        lacking = await missing(connection, self._unchecked_role)
        if lacking:
            login, more = connection.info.user, f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
            raise directory_unavailable(
                f"directory: the role {login} lacks {', '.join(lacking[:3])}{more}. Run `plainsql-server migrate` as"
                f" the owner of the directory, and log in as {self._unchecked_role} or a member of it"
            )
        self._unchecked_role = None


def as_service_error(error: Exception) -> ServiceError:
    """The error to raise for a driver error: the directory is unavailable, or our SQL is wrong."""
    context = f"directory: {described(error)}"
    if isinstance(error, PoolTimeout) and DirectoryConnection.last_failure:
        return directory_unavailable(f"{context}; the last attempt: {DirectoryConnection.last_failure}")
    if isinstance(error, _NOT_MIGRATED):
        return directory_unavailable(f"{context} (has `plainsql-server migrate` run?)")
    if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.OperationalError):
        return InternalError(context)
    return directory_unavailable(context)


def directory_unavailable(context: str) -> EngineError:
    """The error for an unavailable directory. The context is for operators."""
    return EngineError(
        "directory_unavailable",
        "The service's directory is unavailable at the moment.",
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
        internal_context=context,
    )


async def connect_alone(dsn: str, application_name: str) -> DirectoryConnection:
    """A connection outside the pool, for long use. Raises psycopg.Error."""
    return await DirectoryConnection.connect(dsn, **_arguments(application_name))


@asynccontextmanager
async def open_alone(
    dsn: str, application_name: str, statement_timeout_ms: int = _STATEMENT_TIMEOUT_MS
) -> AsyncIterator[DirectoryConnection]:
    """A connection outside the pool, configured as those of the pool, for the length of the block."""
    connection = await connect_alone(dsn, application_name)
    try:
        with cut_if_silent(connection.fileno(), _CHECK_TIMEOUT_S):
            await _configure(connection, statement_timeout_ms)
        yield connection
    finally:
        await connection.close()


def _arguments(application_name: str) -> dict[str, Any]:
    return {
        "autocommit": True,
        "row_factory": dict_row,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "application_name": application_name,
        **_KEEPALIVE,
    }


def _new_pool(dsn: str, max_connections: int) -> _Pool:
    return AsyncConnectionPool(
        dsn,
        connection_class=DirectoryConnection,
        kwargs=_arguments("plainsql-directory"),
        configure=_configure,
        # Costs one round trip per checkout, but a restart of the directory does not fail the next request.
        check=AsyncConnectionPool.check_connection,
        min_size=1,
        max_size=max_connections,
        timeout=_CHECKOUT_TIMEOUT_S,
        # Attempts back off exponentially for this long. After that, the next request starts anew.
        reconnect_timeout=_CHECKOUT_TIMEOUT_S,
        open=False,
        name="directory",
    )


async def _configure(connection: DirectoryConnection, statement_timeout_ms: int = _STATEMENT_TIMEOUT_MS) -> None:
    # Override any server-wide default isolation level, both inside and outside of `transaction()`.
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    await connection.execute("SET default_transaction_isolation = 'read committed'")
    await connection.execute("SET TimeZone = 'UTC'")
    await connection.execute(f"SET statement_timeout = {statement_timeout_ms}")
