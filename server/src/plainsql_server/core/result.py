"""The result of a statement: its shape, its rows and its completion.

Shape and rows are encoded already (see `engine/encoding/values.py`), so nothing between the database connection and the
response needs to parse them again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a result: their names, PostgreSQL's names of their types, and both as JSON members."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    json: bytes


NO_COLUMNS = Shape((), (), b'"columns":[],"types":[]')


class EngineNotice(NamedTuple):
    """A notice or warning of PostgreSQL."""

    severity: str
    code: str
    message: str
    detail: str | None
    hint: str | None


class Notices(NamedTuple):
    """Notices that came with a result, and how many more were omitted because of the limit."""

    shown: tuple[EngineNotice, ...]
    omitted: int


def joined(parts: Iterable[Notices | None]) -> Notices | None:
    """The notices of several databases; None if there are none."""
    every = [part for part in parts if part is not None]
    shown = tuple([notice for part in every for notice in part.shown])
    return Notices(shown, sum([part.omitted for part in every])) if every else None


class Completion:
    """The completion of a statement: its command, the rows it affected, its execution time, and notices if any.

    `tag` is how PostgreSQL reported it, such as `INSERT 0 5`.
    """

    __slots__ = ("affected_rows", "command", "exec_us", "notices", "tag")

    def __init__(
        self, command: str, affected_rows: int, exec_us: int, notices: Notices | None = None, tag: bytes = b""
    ) -> None:
        self.command = command
        self.affected_rows = affected_rows
        self.exec_us = exec_us
        self.notices = notices
        self.tag = tag


class Digests(NamedTuple):
    """The digests of a result: of its rows in their order, and in any order."""

    ordered: str
    multiset: str


class FrozenInsert(NamedTuple):
    """A statement that inserts the same rows again, and the rows as text: its last parameter.

    It is mergeable if no trigger can see whether its rows are inserted together with others.
    """

    sql: str
    rows: list[str]
    mergeable: bool
    size_bytes: int
    # The parameters before, in JSON.
    before: Sequence[bytes] = ()


class Result:
    """A complete, buffered result.

    `row_count` is the number of its rows. They are left out of `rows` if the caller doesn't want them.
    """

    __slots__ = (
        "completion", "digests", "frozen", "queue_us", "row_count", "rows", "shape", "shows_columns",
        "shows_digests", "size_bytes", "truncated",
    )  # fmt: skip

    def __init__(
        self,
        shape: Shape,
        rows: list[bytes],
        truncated: bool,
        completion: Completion,
        queue_us: int,
        *,
        size_bytes: int = 0,
    ) -> None:
        self.shape = shape
        self.rows = rows
        self.truncated = truncated
        self.completion = completion
        self.queue_us = queue_us
        self.size_bytes = size_bytes
        self.row_count = len(rows)
        self.digests: Digests | None = None
        # What the answer has of it. Columns are of no use without rows, and digests may only be there to be compared:
        # the answer to a commit is recorded, and must be short.
        self.shows_columns = True
        self.shows_digests = False
        # A frozen INSERT, or a code for why it can't be frozen; None if that was not asked for.
        self.frozen: FrozenInsert | str | None = None
