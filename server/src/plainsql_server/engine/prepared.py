"""What one connection has prepared on the engine: bounded, oldest use first out.

Owns names and the memory of parameter types. Refuses to talk to the engine: it says what to close.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from plainsql_server.engine.shapes import Encoding, Rendering
from plainsql_server.engine.types import EngineType

# Each prepared statement costs the backend some 10 to 100 kB of plan; 100 serve an ordinary application whole.
MAX_PREPARED = 100


@dataclass(slots=True)
class Prepared:
    """A statement known to the engine by name, its parameters' types, and how its results are rendered.

    The engine refuses to execute it once its result would have another description, so that a rendering
    stays right as long as the catalog's generation lasts, which ends when names may have changed.
    """

    name: bytes
    parameter_types: Sequence[EngineType]
    renderings: dict[tuple[int, Encoding], Rendering] = field(default_factory=dict)


class PreparedStatements:
    """The statements that one connection may execute by name."""

    def __init__(self, max_prepared: int = MAX_PREPARED) -> None:
        self._max_prepared = max_prepared
        self._by_sql: OrderedDict[str, Prepared] = OrderedDict()
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
        self._by_sql[sql] = prepared
        if len(self._by_sql) <= self._max_prepared:
            return []
        _, oldest = self._by_sql.popitem(last=False)
        return [oldest.name]

    def forget(self, sql: str) -> list[bytes]:
        """Drops one statement; the names returned must be closed on the engine."""
        prepared = self._by_sql.pop(sql, None)
        return [] if prepared is None else [prepared.name]

    def clear(self) -> None:
        """Forgets everything, after the engine has discarded everything."""
        self._by_sql.clear()
