"""Ways to have a transaction carried out: by the service over HTTP, or past it by the engine at a chosen isolation.

Owns the translation of answers into outcomes. The direct way is the control: it shows what the same statements do
where nobody keeps them serializable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from server.tests.consistency.history import Outcome
from server.tests.load import Answer, Client, NoAnswer

# Instead of an isolation: no transaction at all, each statement commits by itself.
NONE = "none"
# Deadlocks are part of these tests; PostgreSQL's own second of waiting for each would be most of their time.
DEADLOCK_TIMEOUT_MS = 50


@dataclass(frozen=True)
class Statement:
    """SQL with `$1` and its kin, and the values for them."""

    sql: str
    params: tuple[Any, ...] = ()
    # Where it goes, if not to the default database.
    database: str | None = None

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        named = {} if self.database is None else {"database": self.database}
        return {"sql": self.sql, "params": list(self.params), **named}


@dataclass(frozen=True)
class Reply:
    """What a transaction came to; rows of each statement if it is known to have committed."""

    outcome: Outcome
    code: str = ""
    rows: tuple[list[list[Any]], ...] = ()
    attempts: int = 1
    # What should not have happened, whatever the outcome.
    complaint: str = ""
    # Whether it was reported as committed, even without the rows.
    is_committed: bool = False


class Transport(Protocol):
    """One client's way. One transaction at a time."""

    async def run(self, statements: Sequence[Statement]) -> Reply: ...

    async def close(self) -> None: ...


class HttpTransport:
    """POST /v1/transaction, and POST /v1/query for single statements."""

    def __init__(self, client: Client, **fields: Any) -> None:
        self._client = client
        self._fields = {"row_format": "array", **fields}

    async def run(self, statements: Sequence[Statement]) -> Reply:
        fields = [each.fields() for each in statements]
        return await self._post("/v1/transaction", {"statements": fields, **self._fields})

    async def run_alone(self, statement: Statement) -> Reply:
        fields = {**statement.fields(), "row_format": "array"}
        return await self._post("/v1/query", fields)

    async def close(self) -> None:
        self._client.drop()

    async def _post(self, path: str, fields: dict[str, Any]) -> Reply:
        try:
            await self._client.post(path, fields)
        except (ConnectionRefusedError, ConnectionResetError):
            # No connection came about, so that nothing was sent.
            return Reply(Outcome.FAIL, "no_connection")
        try:
            return reply_of(await self._client.answer())
        except NoAnswer:
            return Reply(Outcome.INFO, "no_answer")
        except TimeoutError:
            self._client.drop()
            return Reply(Outcome.INFO, "hang", complaint=f"no answer to {fields}")


_OUTCOMES = {
    "rolled_back": Outcome.FAIL, "not_executed": Outcome.FAIL, "unknown": Outcome.INFO,
    # It took effect, but the rows that it saw are not reported.
    "committed": Outcome.INFO,
}  # fmt: skip


def reply_of(answer: Answer) -> Reply:
    """What an answer says."""
    if answer.succeeded:
        results = answer.body.get("results") or [answer.body]
        attempts = answer.body.get("transaction", {}).get("attempts", 1)
        return Reply(Outcome.OK, rows=tuple(result["rows"] for result in results), attempts=attempts)
    retried = "serialization" in answer.code or "deadlock" in answer.code
    expected = answer.is_refusal() or (answer.status == 200 and retried)
    complaint = "" if expected else f"{answer.status} {answer.body}"
    is_committed = answer.outcome == "committed"
    return Reply(_OUTCOMES[answer.outcome], answer.code, complaint=complaint, is_committed=is_committed)


class DirectTransport:
    """A connection of psycopg's, a transaction at the given isolation. Nothing is retried."""

    def __init__(self, dsn: str, isolation: str) -> None:
        self._dsn = dsn
        self._isolation = isolation
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def run(self, statements: Sequence[Statement]) -> Reply:
        try:
            rows = await self._run(statements)
        except psycopg.Error as error:
            await self.close()
            outcome = Outcome.FAIL if error.sqlstate else Outcome.INFO
            return Reply(outcome, type(error).__name__)
        return Reply(Outcome.OK, rows=rows)

    async def _run(self, statements: Sequence[Statement]) -> tuple[list[list[Any]], ...]:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, options=f"-c deadlock_timeout={DEADLOCK_TIMEOUT_MS}"
            )
        cursor = psycopg.AsyncRawCursor(self._connection)
        rows: list[list[list[Any]]] = []
        if self._isolation != NONE:
            await cursor.execute(f"begin isolation level {self._isolation}")
        for statement in statements:
            await cursor.execute(statement.sql, statement.params)
            rows.append([list(row) for row in await cursor.fetchall()] if cursor.description else [])
        if self._isolation != NONE:
            await cursor.execute("commit")
        return tuple(rows)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        self._connection = None
