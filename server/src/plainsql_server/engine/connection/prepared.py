"""What one connection has prepared on the engine: bounded, oldest use first out.

Owns names and the memory of parameter types. Refuses to talk to the engine: it says what to close.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from plainsql_server.engine.encoding.shapes import Encoding, Rendering
from plainsql_server.engine.encoding.types import EngineType

# Each prepared statement costs the backend some 10 to 100 kB of plan; 100 serve an ordinary application whole.
MAX_PREPARED = 100
# All of their texts together, since a tenant's may be a megabyte each, in every connection; the newest is kept anyway.
MAX_PREPARED_LENGTH = 256 * 1024


@dataclass(slots=True)
class Prepared:
    """A statement known to the engine by name, its parameters' types, and how its results are rendered.

    The engine refuses to execute it once its result would have another description, so that a rendering
    stays right as long as the catalog's generation lasts, which ends when names may have changed.
    """

    name: bytes
    parameter_types: Sequence[EngineType]
    _renderings: dict[Encoding, Rendering] = field(default_factory=dict)
    _generation: int = 0

    def rendering(self, generation: int, encoding: Encoding) -> Rendering | None:
        return self._renderings.get(encoding) if generation == self._generation else None

    def remember(self, generation: int, encoding: Encoding, rendering: Rendering) -> None:
        """Remembers how its results are rendered, and forgets what was so in another generation."""
        if generation != self._generation:
            self._renderings.clear()
            self._generation = generation
        self._renderings[encoding] = rendering


class PreparedStatements:
    """The statements that one connection may execute by name."""

    def __init__(self, max_prepared: int = MAX_PREPARED) -> None:
        self._max_prepared = max_prepared
        self._by_sql: OrderedDict[str, Prepared] = OrderedDict()
        self._length = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._by_sql)

    def find(self, sql: str) -> Prepared | None:
        prepared = self._by_sql.get(sql)
        if prepared is not None:
            self._by_sql.move_to_end(sql)
        return prepared

    def new_name(self) -> bytes:
        self._count += 1
        return b"plainsql_%d" % self._count

    def add(self, sql: str, prepared: Prepared) -> list[bytes]:
        """Remembers a statement; the names returned were pushed out and must be closed on the engine."""
        self._length += len(sql) if sql not in self._by_sql else 0
        self._by_sql[sql] = prepared
        pushed_out: list[bytes] = []
        while len(self._by_sql) > self._max_prepared or (len(self._by_sql) > 1 and self._length > MAX_PREPARED_LENGTH):
            oldest_sql, oldest = self._by_sql.popitem(last=False)
            self._length -= len(oldest_sql)
            pushed_out.append(oldest.name)
        return pushed_out

    def forget(self, sql: str) -> list[bytes]:
        """Drops one statement; the names returned must be closed on the engine."""
        prepared = self._by_sql.pop(sql, None)
        if prepared is None:
            return []
        self._length -= len(sql)
        return [prepared.name]

    def clear(self) -> None:
        """Forgets everything, after the engine has discarded everything."""
        self._by_sql.clear()
        self._length = 0
