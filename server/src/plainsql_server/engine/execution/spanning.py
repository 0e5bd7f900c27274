"""One database's part in a transaction that spans several: run, prepared, then committed or rolled back.

Owns PREPARE TRANSACTION and what ends a prepared one, and the names that they go by. Sending and reading are apart, so
that the databases of a transaction work at the same time. Refuses to decide: whether a prepared transaction is
committed is what the directory says (`data_plane/spanning.py`).
"""

import secrets
from collections.abc import Sequence
from contextlib import suppress

from psycopg.pq import ExecStatus

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import EngineError, InternalError, LimitError, Outcome, ServiceError
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import close_prepared, drain, fail, run_command
from plainsql_server.engine.connection.sqlstate import engine_away
from plainsql_server.engine.execution.execution import NOTHING_DEFERRED
from plainsql_server.engine.execution.transaction import Attempt, Plan, Results
from plainsql_server.engine.pool.pool import Lease, Pool

# What the service prepares is called so, and what is called so has a record in the directory.
GID_PREFIX = "plainsql_"

_NO_SUCH_GID = "42704"
_OUT_OF_MEMORY = "53200"
_NO_ROOM = "maximum number of prepared transactions reached"
_RETRY_AFTER_MS = 1_000
_PREPARED_TAG = b"PREPARE TRANSACTION"
# Whatever a customer's statement set: others depend on what is prepared here, so that it must survive this machine. It
# is not local, because COMMIT PREPARED comes after this transaction.
_AWAIT_STANDBY = b"set synchronous_commit = on"


def new_gid() -> str:
    """A name that nobody can guess, with 160 random bits."""
    return GID_PREFIX + secrets.token_hex(20)


def gid_of(gid: str, participant: int) -> str:
    """The name on one participant: several may be on one cell, where names must differ."""
    return f"{gid}_{participant}"


class Participant(Attempt):
    """A transaction's part in one database, on the connection of a lease.

    What raises has been rolled back, unless `may_be_prepared`. Whoever cancels a method from `send_prepare` on gives it
    up.
    """

    def __init__(self, lease: Lease, catalog: Catalog, plan: Plan, told: Results, gid: str) -> None:
        super().__init__(lease, catalog, plan, told)
        self.gid = gid
        self.has_begun = False
        self.is_prepared = False
        # How long the engine worked for it.
        self.used_us = 0
        # From the moment that it is asked for until it is known not to be: then it ends by its name only.
        self.may_be_prepared = False

    async def run_steps(self, indexes: Sequence[int], *, is_last: bool) -> None:
        """Runs these steps, in one flush where nothing depends on an earlier answer.

        With the last ones goes what is deferred, which may take long: while PREPARE ran it, others would be prepared.
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
            raise engine_away(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
        except ServiceError as error:
            await self._undo(error)
            raise
        finally:
            self.used_us += monotonic_us() - began_us

    async def end_reading(self) -> None:
        """Commits what has only read. Raises what the engine finds then."""
        try:
            if self._plan.guarded:
                self._queue_guards()
                await self._settle()
            await run_command(self._connection, b"commit")
        except EngineError as error:
            raise engine_away(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
        except ServiceError as error:
            await self._undo(error)
            raise

    def check_not_ended(self) -> None:
        """Raises StatementError if it is being interrupted."""
        self._check_not_ended()

    async def send_prepare(self) -> None:
        """Sends what ends the first phase: the guards, the record and PREPARE TRANSACTION."""
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
            raise engine_away(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
        except ServiceError as error:
            await self._undo(error)
            raise

    async def read_prepare(self) -> None:
        """Returns once it is prepared. Raises what the engine found against it, which has rolled back then."""
        began_us = monotonic_us()
        try:
            await self._read_due()
            await self._read_prepared()
        except EngineError as error:
            raise engine_away(error.internal_context or "", outcome=Outcome.ROLLED_BACK) from error
        except ServiceError as error:
            self.may_be_prepared = False
            await self._undo(error)
            if error.diagnosis.sqlstate == _OUT_OF_MEMORY and error.message == _NO_ROOM:
                raise _no_room() from error
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
            # There was no transaction any more, which the engine only warns of.
            raise InternalError(f"preparing was answered with {tag!r}")
        self.is_prepared = True

    def send_commit(self) -> None:
        """Sends COMMIT PREPARED, if the connection still takes it."""
        with suppress(EngineError):
            self._connection.send_query(f"commit prepared '{self.gid}'".encode())
            self._connection.sync()

    async def read_commit(self) -> bool:
        """Whether it is committed, be it by somebody else. If not, another connection must do it."""
        try:
            await read_end(self._connection)
        except ServiceError:
            return False
        return self._connection.is_open

    async def tidy(self) -> None:
        """Closes what preparing statements pushed out; for a connection that goes back to its pool."""
        with suppress(ServiceError):
            await close_prepared(self._connection, self._pushed_out)

    async def roll_back(self) -> bool:
        """Undoes all of it, and says whether it is certain that nothing stays prepared."""
        try:
            if self.is_prepared:
                self._connection.send_query(f"rollback prepared '{self.gid}'".encode())
                self._connection.sync()
                await read_end(self._connection)
                self.is_prepared = self.may_be_prepared = False
            elif not self.may_be_prepared:
                await self._roll_back()
        except ServiceError:
            # The connection is lost, or the engine does not let us: whoever looks after the record ends it.
            return False
        return not self.may_be_prepared

    def give_up(self) -> bool:
        """Closes the connection, whose engine does not answer; says whether it is certain that nothing is prepared."""
        self._connection.close()
        return not self.may_be_prepared


async def commit_anew(pool: Pool, gid: str) -> None:
    """Commits what is prepared, on a connection that lives for that alone. Raises ServiceError."""
    connection = await pool.open_apart()
    try:
        connection.send_query(f"commit prepared '{gid}'".encode())
        connection.sync()
        await read_end(connection)
    finally:
        connection.close()


async def read_end(connection: Connection) -> bool:
    """Reads the answer to what ends a prepared transaction; False if it was not there any more: ended before."""
    try:
        await drain(connection)
    except ServiceError as error:
        if error.diagnosis.sqlstate != _NO_SUCH_GID:
            raise
        return False
    return True


def _no_room() -> LimitError:
    return LimitError(
        "overloaded",
        "Too many transactions of the cell are being committed in several databases.",
        retryable=True,
        retry_after_ms=_RETRY_AFTER_MS,
        outcome=Outcome.ROLLED_BACK,
    )
