"""A transaction to run, and the results of its steps: what the modules that run transactions share.

    plan = Plan([TransactionStep("select 1", digest=True)], dry_run=True)

`transaction.py` makes the attempts at a plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from plainsql_server.core.insert_text import InsertText
from plainsql_server.core.result import Result
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.encoding.shapes import DEFAULT_ENCODING, Encoding
from plainsql_server.engine.execution.records import Record


class Count(Enum):
    """A count that a result has in addition to its rows."""

    ROWS = "row_count"
    AFFECTED = "affected_rows"


@dataclass(frozen=True, slots=True)
class ResultReference:
    """A parameter taken from an earlier step's result: one of its counts, or a value by row and column."""

    step: int
    path: str
    count: Count | None = None
    row: int = 0
    column: str = ""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The count that a step's result must have. Otherwise the transaction is rolled back."""

    count: Count
    wanted: int


@dataclass(frozen=True, slots=True)
class ExpectedDigest:
    """The digest that a step's result must have: of its rows in their order, or in any order."""

    wanted: str
    is_ordered: bool


@dataclass(slots=True)
class TransactionStep:
    """One statement of a transaction. A parameter is raw JSON, or a reference to an earlier step."""

    sql: str
    params: Sequence[bytes | ResultReference] = ()
    expect: Expectation | ExpectedDigest | None = None
    # Whether its result has digests.
    digest: bool = False
    # Whether its result has the rows themselves.
    rows: bool = True
    # The INSERT to freeze, or a code for why it can't be frozen.
    freeze: InsertText | str | None = None
    # The encoding of its result.
    encoding: Encoding = DEFAULT_ENCODING

    @property
    def is_hashed(self) -> bool:
        return self.digest or isinstance(self.expect, ExpectedDigest)


@dataclass(slots=True)
class Plan:
    """A transaction to run."""

    steps: Sequence[TransactionStep]
    read_only: bool = False
    max_rows: int = 0
    max_bytes: int = 0
    # Whether the first step might run before the first snapshot, so that it could change the isolation level.
    first_takes_no_snapshot: bool = False
    # Whether a step could change the isolation level or the read-only mode.
    guarded: bool = False
    # What the steps may leave behind in the session, as far as is known when they are sent.
    session_state: SessionState = SessionState.EVERYTHING
    record: Record | None = None
    # Whether it is rolled back at its end, and whether deferred constraints are checked before that.
    dry_run: bool = False
    check_deferred: bool = False
    # The transaction times of earlier dry runs, which digests take for the time of this one.
    nows: Sequence[str] = ()
    # The key of the database's digests.
    digest_key: bytes = b""
    # The transaction's own time, if it must be known. The attempt notes it here before the steps run.
    now: str | None = None
    # Steps whose prepared statement was stale in an earlier attempt. They are prepared again at their position in the
    # transaction, after the statement that changed the schema.
    fresh: set[int] = field(default_factory=set)
    # All steps to freeze, if PostgreSQL rejected one, perhaps because of what was added. They run as they were sent.
    unfrozen: set[int] = field(default_factory=set)

    @property
    def needs_time(self) -> bool:
        """Whether the transaction's time must be known."""
        return self.dry_run or any(step.is_hashed for step in self.steps)


@dataclass(slots=True)
class Results:
    """The results of the steps so far. The participants of a spanning transaction share one instance."""

    results: list[Result] = field(default_factory=list)
    counts: list[dict[Count, int]] = field(default_factory=list)
    values: dict[ResultReference, bytes | None] = field(default_factory=dict)
    size_bytes: int = 0
    # What was hashed for the digests of complete results.
    hashed_bytes: int = 0


def references(steps: Sequence[TransactionStep]) -> Mapping[int, Mapping[int, set[ResultReference]]]:
    """The values that references need, by step and row."""
    wanted: dict[int, dict[int, set[ResultReference]]] = {}
    for step in steps:
        for param in step.params:
            if isinstance(param, ResultReference) and param.count is None:
                wanted.setdefault(param.step, {}).setdefault(param.row, set()).add(param)
    return wanted
