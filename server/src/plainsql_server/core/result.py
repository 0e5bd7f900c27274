"""The result of a statement: its shape, its rows and its completion.

Shape and rows are encoded already (see `engine/encoding/values.py`), so nothing between the database connection and the
response needs to parse them again.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a result: their names, PostgreSQL's names of their types, and both as JSON members."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    json: bytes


NO_COLUMNS = Shape((), (), b'"columns":[],"types":[]')


class Completion:
    """The completion of a statement: its command, the rows it affected, and its execution time."""

    __slots__ = ("affected_rows", "command", "exec_us")

    def __init__(self, command: str, affected_rows: int, exec_us: int) -> None:
        self.command = command
        self.affected_rows = affected_rows
        self.exec_us = exec_us


class Result:
    """A complete, buffered result."""

    __slots__ = ("completion", "queue_us", "rows", "shape", "size_bytes", "truncated")

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
