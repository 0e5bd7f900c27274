"""What a statement gives back.

Owns the words: a shape, rows, one completion. Rows and the shape are JSON already (see `engine/encoding/values.py`),
so that nothing between the engine and the wire looks at them again.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a result: their names, the engine's names of their types, and both as JSON members."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    json: bytes


NO_COLUMNS = Shape((), (), b'"columns":[],"types":[]')


class Completion:
    """How a statement ended."""

    __slots__ = ("affected_rows", "command", "exec_us")

    def __init__(self, command: str, affected_rows: int, exec_us: int) -> None:
        self.command = command
        self.affected_rows = affected_rows
        self.exec_us = exec_us


class Result:
    """A whole, buffered result: a collected stream."""

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
