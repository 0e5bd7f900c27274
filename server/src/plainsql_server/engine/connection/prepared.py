"""The statements that one connection has prepared: a bounded cache that evicts the least recently used.

It keeps names and parameter types, and sends nothing: `add` and `forget` return the names that the caller must close
in the backend.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from plainsql_server.engine.encoding.shapes import Encoding, Rendering
from plainsql_server.engine.encoding.types import EngineType

# A prepared statement costs the backend 10 to 100 kB for its plan. 100 cover all statements of a typical application.
MAX_PREPARED = 100
# For all SQL texts of a connection together, because each may be a megabyte long. The newest is kept in any case.
MAX_PREPARED_LENGTH = 256 * 1024


@dataclass(slots=True)
class Prepared:
    """A prepared statement: its name in the backend, its parameter types, and how to encode its results.

    PostgreSQL refuses to execute it once its result would have different columns or types. So a rendering stays valid
    until the catalog's generation changes, which happens when a type may have been renamed.
    """

    name: bytes
    parameter_types: Sequence[EngineType]
    _renderings: dict[Encoding, Rendering] = field(default_factory=dict)
    _generation: int = 0

    def rendering(self, generation: int, encoding: Encoding) -> Rendering | None:
        return self._renderings.get(encoding) if generation == self._generation else None

    def remember(self, generation: int, encoding: Encoding, rendering: Rendering) -> None:
        """Caches a rendering, and drops those of another generation."""
        if generation != self._generation:
            self._renderings.clear()
            self._generation = generation
        self._renderings[encoding] = rendering


class PreparedStatements:
    """The statements that one connection can execute by name."""

    def __init__(self, max_prepared: int = MAX_PREPARED) -> None:
        self._max_prepared = max_prepared
        self.by_sql: OrderedDict[str, Prepared] = OrderedDict()
        self._length = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self.by_sql)

    def find(self, sql: str) -> Prepared | None:
        prepared = self.by_sql.get(sql)
        if prepared is not None:
            self.by_sql.move_to_end(sql)
        return prepared

    def new_name(self) -> bytes:
        self._count += 1
        return b"plainsql_%d" % self._count

    def add(self, sql: str, prepared: Prepared) -> list[bytes]:
        """Adds a statement. Returns the names of evicted statements, which the caller must close in the backend."""
        self._length += len(sql) if sql not in self.by_sql else 0
        self.by_sql[sql] = prepared
        pushed_out: list[bytes] = []
        while len(self.by_sql) > self._max_prepared or (len(self.by_sql) > 1 and self._length > MAX_PREPARED_LENGTH):
            oldest_sql, oldest = self.by_sql.popitem(last=False)
            self._length -= len(oldest_sql)
            pushed_out.append(oldest.name)
        return pushed_out

    def forget(self, sql: str) -> list[bytes]:
        """Removes one statement. Returns the names that the caller must close in the backend."""
        prepared = self.by_sql.pop(sql, None)
        if prepared is None:
            return []
        self._length -= len(sql)
        return [prepared.name]

    def clear(self) -> None:
        """Removes everything, after DISCARD ALL has dropped the statements in the backend."""
        self.by_sql.clear()
        self._length = 0
