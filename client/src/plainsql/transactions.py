"""Several statements as one transaction, put together first and sent once.

Owns the builder: statements, what is expected of them, and references to what earlier ones return. Refuses to send:
the clients do.
"""

from typing import Any

from plainsql.errors import ResultError
from plainsql.protocol import Options
from plainsql.result import Result, TransactionResult


class Reference:
    """A value that an earlier statement of the transaction will return; give it as a parameter."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class Pending:
    """A statement that was added to a transaction. `result` is there once the transaction is done."""

    __slots__ = ("_result", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self._result: Result | None = None

    def ref(self, column: str | int, row: int = 0) -> Reference:
        """The value in a column (a name, or a number from 0) of a row that this statement returns."""
        return Reference(f"{self.index}.rows.{row}.{column}")

    def row_count(self) -> Reference:
        """How many rows this statement returns."""
        return Reference(f"{self.index}.row_count")

    def affected_rows(self) -> Reference:
        """How many rows this statement changes."""
        return Reference(f"{self.index}.affected_rows")

    @property
    def result(self) -> Result:
        """What the statement returned. Raises ResultError as long as the transaction is not done."""
        if self._result is None:
            raise ResultError("The transaction has not been run.")
        return self._result

    def fill(self, result: Result) -> None:
        """Called when the transaction is done."""
        self._result = result


class TransactionBuilder:
    """Statements to be run together. `add` them; nothing is sent before the transaction is run."""

    __slots__ = ("is_done", "max_retries", "options", "pending", "statements")

    def __init__(self, options: Options, max_retries: int | None = None) -> None:
        self.options = options
        self.max_retries = max_retries
        self.statements: list[dict[str, Any]] = []
        self.pending: list[Pending] = []
        self.is_done = False

    def add(
        self, sql: str, *params: Any, expect_affected: int | None = None, expect_rows: int | None = None
    ) -> Pending:
        """Adds a statement.

        `expect_affected` or `expect_rows` roll everything back, with the code `expectation_failed`, unless the
        statement changes or returns exactly so many rows.
        """
        statement: dict[str, Any] = {"sql": sql}
        if params:
            statement["params"] = [_encode(each) for each in params]
        if expect_affected is not None and expect_rows is not None:
            raise ValueError("A statement can expect either a number of changed rows or one of returned rows.")
        if expect_affected is not None:
            statement["expect"] = {"affected_rows": expect_affected}
        if expect_rows is not None:
            statement["expect"] = {"row_count": expect_rows}
        self.statements.append(statement)
        self.pending.append(Pending(len(self.pending)))
        return self.pending[-1]

    def fill(self, result: TransactionResult) -> TransactionResult:
        """Hands each statement its result."""
        self.is_done = True
        for pending, each in zip(self.pending, result.results, strict=True):
            pending.fill(each)
        return result


def _encode(param: Any) -> Any:
    from plainsql.parameters import encode_param  # noqa: PLC0415  # slow to import

    return {"$ref": param.path} if isinstance(param, Reference) else encode_param(param)
