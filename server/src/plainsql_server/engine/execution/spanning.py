"""A participant in a spanning transaction: one database's part of a two-phase commit.

    await participant.run_steps(indexes, is_last=True)
    await participant.send_prepare()
    await participant.read_prepare()
    participant.send_commit()
    await participant.read_commit()

Sending and reading are separate calls, so that the databases of a transaction work in parallel. Whether a prepared
transaction is to be committed is decided by the record in the directory, not here; see `data_plane/spanning.py`.
"""

import secrets
from collections.abc import Sequence
from contextlib import suppress

from psycopg.pq import ExecStatus

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import (
    RETRY_AFTER_MS,
    EngineError,
    InternalError,
    LimitError,
    Outcome,
    ServiceError,
)
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import close_prepared, drain, fail, run_command
from plainsql_server.engine.connection.sqlstate import engine_unavailable
from plainsql_server.engine.execution.execution import NOTHING_DEFERRED
from plainsql_server.engine.execution.plan import Plan, Results
from plainsql_server.engine.execution.transaction import Attempt
from plainsql_server.engine.pool.pool import Lease, Pool

# The prefix of the gid of every transaction that the service prepares. Each has a record in the directory.
GID_PREFIX = "plainsql_"

_NO_SUCH_GID = "42704"
_OUT_OF_MEMORY = "53200"
_TOO_MANY_PREPARED = "maximum number of prepared transactions reached"
_PREPARED_TAG = b"PREPARE TRANSACTION"
# Overrides what a tenant's statement may have set. The other participants depend on this prepared transaction, so it
# must survive the loss of this server. Not SET LOCAL, because COMMIT PREPARED runs after this transaction.
_AWAIT_STANDBY = b"set synchronous_commit = on"


def new_gid(participants: int = 2) -> str:
    """A new gid that cannot be guessed: 160 random bits.

    It tells how many participants there are, because a directory that was restored to an earlier moment may not know.
    """
    return f"{GID_PREFIX}{secrets.token_hex(20)}_{participants}"


def gid_of(gid: str, participant: int) -> str:
    """The gid of one participant. Participants may be on the same cell, where gids must be unique."""
    return f"{gid}_{participant}"


def transaction_of(gid: str) -> tuple[str, int | None]:
    """The gid of the whole transaction of a participant's, and how many participants it has.

    None: a version that did not tell the number prepared it.
    """
    whole, _, _ = gid.rpartition("_")
    _, _, number = whole.removeprefix(GID_PREFIX).partition("_")
    return whole, int(number) if number else None


class Participant(Attempt):
    """A transaction's part in one database, on a leased connection.

    If a method raises, the part has been rolled back, unless `may_be_prepared` is set. If a method from `send_prepare`
    on is cancelled, call `give_up`.
    """

    def __init__(self, lease: Lease, catalog: Catalog, plan: Plan, results: Results, gid: str) -> None:
        super().__init__(lease, catalog, plan, results)
        self.gid = gid
        self.has_begun = False
        self.is_prepared = False
        # How long the backend worked on this part.
        self.used_us = 0
        # Set when PREPARE TRANSACTION is sent, until it is known to have failed or to have been rolled back. While set,
        # only COMMIT PREPARED or ROLLBACK PREPARED can end the transaction.
        self.may_be_prepared = False

    async def run_steps(self, indexes: Sequence[int], *, is_last: bool) -> None:
        """Runs these steps, in one flush unless a step depends on an earlier result.

        With the last steps, deferred constraints are checked. That may take long, and if PREPARE TRANSACTION had to do
        it, other participants would be prepared meanwhile.
        """
        began_us = self._read_until_us = monotonic_us()
        try:
            if not self.has_begun:
                self.has_begun = True
                self._begin()
            for index in indexes:
                await self._queue_step(index, self._plan.steps[index])
            if is_last and not self._plan.read_only:
                self._queue_ours(NOTHING_DEFERRED)
            await self._settle()
        except EngineError as error:
            raise engine_unavailable(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
        except ServiceError as error:
            await self._undo(error)
            raise
        finally:
            self.used_us += monotonic_us() - began_us

    async def end_reading(self) -> None:
        """Commits a part that has only read. Raises the error if the commit fails."""
        try:
            if self._plan.guarded:
                self._queue_guards()
                await self._settle()
            await run_command(self._connection, b"commit")
        except EngineError as error:
            raise engine_unavailable(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
        except ServiceError as error:
            await self._undo(error)
            raise

    def check_not_ended(self) -> None:
        """Raises StatementError if the lease has been interrupted."""
        self._check_not_ended()

    async def send_prepare(self) -> None:
        """Sends the end of the first phase: the guards, the idempotency record and PREPARE TRANSACTION."""
        try:
            self._check_not_ended()
            if self._plan.guarded:
                self._queue_guards()
                self._queue_ours(_AWAIT_STANDBY)
            if self._plan.record is not None:
                self._queue_record(self._plan.record)
            self._connection.send_query(f"prepare transaction '{self.gid}'".encode())
            self.may_be_prepared = True
            self._connection.sync()
        except EngineError as error:
            raise engine_unavailable(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
        except ServiceError as error:
            await self._undo(error)
            raise

    async def read_prepare(self) -> None:
        """Returns once the transaction is prepared. Raises the error if it failed; PostgreSQL has then rolled it back.

        If the connection is lost, `may_be_prepared` stays set.
        """
        began_us = monotonic_us()
        try:
            await self._read_due()
            await self._read_prepared()
        except EngineError as error:
            raise engine_unavailable(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
        except ServiceError as error:
            self.may_be_prepared = False
            await self._undo(error)
            if error.diagnosis.sqlstate == _OUT_OF_MEMORY and error.message == _TOO_MANY_PREPARED:
                raise _too_many_prepared() from error
            raise
        finally:
            self.used_us += monotonic_us() - began_us

    async def _read_prepared(self) -> None:
        tag: bytes | None = None
        while self._connection.syncs_due:
            result = await self._connection.fetch()
            if result is not None and result.status == ExecStatus.FATAL_ERROR:
                await fail(self._connection, result)
            if result is not None and result.status == ExecStatus.COMMAND_OK:
                tag = result.command_status
        if tag != _PREPARED_TAG:
            # There was no transaction to prepare. PostgreSQL only warns about that.
            raise InternalError(f"PREPARE TRANSACTION returned {tag!r}")
        self.is_prepared = True

    def send_commit(self) -> None:
        """Sends COMMIT PREPARED, if the connection is still usable."""
        with suppress(EngineError):
            self._connection.send_query(f"commit prepared '{self.gid}'".encode())
            self._connection.sync()

    async def read_commit(self) -> bool:
        """Whether the transaction is committed, by this connection or another. If not, call `commit_anew`."""
        try:
            await read_end(self._connection)
        except ServiceError:
            return False
        return self._connection.is_open

    async def tidy(self) -> None:
        """Closes the prepared statements that were evicted, before the connection goes back to its pool."""
        with suppress(ServiceError):
            await close_prepared(self._connection, self._pushed_out)

    async def roll_back(self) -> bool:
        """Rolls back, and returns whether it is certain that nothing stays prepared."""
        try:
            if self.is_prepared:
                self._connection.send_query(f"rollback prepared '{self.gid}'".encode())
                self._connection.sync()
                await read_end(self._connection)
                self.is_prepared = self.may_be_prepared = False
            elif not self.may_be_prepared:
                await self._roll_back()
        except ServiceError:
            # The connection is lost, or the rollback failed. Recovery ends the transaction by its directory record.
            return False
        return not self.may_be_prepared

    def give_up(self) -> bool:
        """Closes a connection that does not respond. Returns whether it is certain that nothing is prepared."""
        self._connection.close()
        return not self.may_be_prepared


async def commit_anew(pool: Pool, gid: str) -> None:
    """Commits a prepared transaction on a new connection, opened for this alone. Raises ServiceError if that fails."""
    connection = await pool.open_apart()
    try:
        connection.send_query(f"commit prepared '{gid}'".encode())
        connection.sync()
        await read_end(connection)
    finally:
        connection.close()


async def read_end(connection: Connection) -> bool:
    """Reads the result of COMMIT PREPARED or ROLLBACK PREPARED. Returns False if the transaction had ended before."""
    try:
        await drain(connection)
    except ServiceError as error:
        if error.diagnosis.sqlstate != _NO_SUCH_GID:
            raise
        return False
    return True


def _too_many_prepared() -> LimitError:
    return LimitError(
        "overloaded",
        "Too many transactions that span databases are being committed on this cell.",
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
        outcome=Outcome.ROLLED_BACK,
    )
