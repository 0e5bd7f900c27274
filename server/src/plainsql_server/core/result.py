"""What a statement gives back.

Owns the words: columns, batches of rows, one completion. Rows are already encoded (see `engine/values.py`),
so that nothing between the engine and the wire looks at them again.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result: its name as the engine gave it, and the engine's name of its type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Completion:
    """How a statement ended."""

    command: str
    affected_rows: int
    exec_us: int


@dataclass(slots=True)
class Result:
    """A whole, buffered result: a collected stream."""

    columns: list[str]
    types: list[str]
    rows: list[bytes]
    truncated: bool
    completion: Completion
