"""What a statement gives back.

Owns the words: a shape, rows, one completion. Rows and the shape are JSON already (see `engine/values.py`),
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


@dataclass(slots=True)
class Completion:
    """How a statement ended."""

    command: str
    affected_rows: int
    exec_us: int


@dataclass(slots=True)
class Result:
    """A whole, buffered result: a collected stream."""

    shape: Shape
    rows: list[bytes]
    truncated: bool
    completion: Completion
    queue_us: int
    size_bytes: int = 0
