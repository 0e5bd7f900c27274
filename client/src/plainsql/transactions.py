"""Builds a transaction: its statements, their expectations, and references to the results of earlier statements.

The clients send it, in one request; or, if it is interactive, its statements one by one.
"""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from plainsql.errors import Notice, ResultError
from plainsql.result import Result, TransactionResult
from plainsql.transport.protocol import Options

if TYPE_CHECKING:
    from plainsql.interactive.session import InteractiveSession


class Reference:
    """A value that an earlier statement of the transaction will return. Pass it as a parameter."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class Pending:
    """A statement in a transaction. `result` is available once the transaction has run."""

    __slots__ = ("_result", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self._result: Result | None = None

    def ref(self, column: str | int, row: int = 0) -> Reference:
        """Refers to a value that this statement returns. `column` is a name, or a number from 0."""
        return Reference(f"{self.index}.rows.{row}.{column}")

    def row_count(self) -> Reference:
        """Refers to the number of rows that this statement returns."""
        return Reference(f"{self.index}.row_count")

    def affected_rows(self) -> Reference:
        """Refers to the number of rows that this statement changes."""
        return Reference(f"{self.index}.affected_rows")

    @property
    def result(self) -> Result:
        """The statement's result. Raises ResultError if the transaction hasn't run."""
        if self._result is None:
            raise ResultError("The transaction hasn't run.")
        return self._result

    def fill(self, result: Result) -> None:
        """Sets the result. Called when the transaction has run."""
        self._result = result


class TransactionBuilder:
    """Statements that run as one transaction. `add` them; nothing is sent until the transaction runs."""

    __slots__ = ("_result", "interactive", "is_done", "max_retries", "options", "pending", "statements")

    def __init__(self, options: Options, max_retries: int | None = None) -> None:
        self.options = options
        self.max_retries = max_retries
        self.statements: list[dict[str, Any]] = []
        self.pending: list[Pending] = []
        self.is_done = False
        self._result: TransactionResult | None = None
        # Set once a statement has run at once; from then on, none can be added.
        self.interactive: InteractiveSession | None = None

    def add(
        self, sql: str, *params: Any, expect_affected: int | None = None, expect_rows: int | None = None
    ) -> Pending:
        """Adds a statement.

        With `expect_affected` or `expect_rows`, the statement must change or return exactly that many rows. Otherwise
        the transaction is rolled back with the code `expectation_failed`.
        """
        if self.interactive is not None:
            raise ValueError("Use either add() or query() in a transaction, not both.")
        statement: dict[str, Any] = {"sql": sql}
        if params:
            statement["params"] = [_encode(each) for each in params]
        if expect_affected is not None and expect_rows is not None:
            raise ValueError("Pass either expect_affected or expect_rows, not both.")
        if expect_affected is not None:
            statement["expect"] = {"affected_rows": expect_affected}
        if expect_rows is not None:
            statement["expect"] = {"row_count": expect_rows}
        self.statements.append(statement)
        self.pending.append(Pending(len(self.pending)))
        return self.pending[-1]

    def fill(self, result: TransactionResult) -> TransactionResult:
        """Sets each statement's result."""
        self.is_done = True
        self._result = result
        for pending, each in zip(self.pending, result.results, strict=True):
            pending.fill(each)
        return result

    @property
    def result(self) -> TransactionResult:
        """What the added statements returned, once they have run: at the end of the `with` block, or after `run`.

        If the statements ran one by one with `query`, it is about the commit, and has no results. Raises ResultError if
        nothing is committed yet, or if the transaction only read: its end then sends nothing.
        """
        if self._result is None:
            raise ResultError("The transaction hasn't run, or it ran only queries that read, so there was no commit.")
        return self._result


class InteractiveBuilder(TransactionBuilder):
    """A transaction whose statements are either added, or run one by one."""

    __slots__ = ("_beginning",)

    def __init__(self, options: Options, max_retries: int | None = None) -> None:
        super().__init__(options, max_retries)
        # Two threads must not begin a session each: the statements of one would be lost.
        self._beginning = Lock()

    def _begun(self, begin: "Callable[..., InteractiveSession]") -> "InteractiveSession":
        """The session that runs the next statement at once. `begin` is the client's `interactive`."""
        if self.statements:
            raise ValueError("Use either add() or query() in a transaction, not both.")
        if self.is_done:
            raise ValueError("The transaction has ended.")
        with self._beginning:
            if self.interactive is None:
                self.interactive = begin(self.options, max_retries=self.max_retries)
            return self.interactive

    def committed(self, result: TransactionResult | None) -> None:
        """Keeps the outcome of the commit after `query`. Called at the end of the block."""
        if result is not None:
            # Its statements are not those of the program: inserts are merged, and equal reads are sent once.
            result.results.clear()
        self._result = result

    @property
    def notices(self) -> list[Notice]:
        """PostgreSQL's notices and warnings: those of all statements that `query` ran, and of the commit."""
        return [] if self.interactive is None else self.interactive.notices

    def rollback(self) -> None:
        """Discards everything that ran in this transaction so far."""
        if self.interactive is not None:
            self.interactive.rollback()
        self.statements.clear()
        self.pending.clear()
        self._result = None


def _encode(param: Any) -> Any:
    from plainsql.parameters import encode_param  # noqa: PLC0415  # slow to import

    return {"$ref": param.path} if isinstance(param, Reference) else encode_param(param)
