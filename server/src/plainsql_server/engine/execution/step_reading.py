"""A step's result while it is being read: its rows, digests, and what a frozen INSERT needs.

reading = StepReading(step, freezing, times, key)
reading.start(rendering, result)
await reading.hash(result, max_bytes, is_long=False)
result = reading.finish(completion, max_rows)
"""

from psycopg.pq.abc import PGresult

from plainsql_server.core.result import NO_COLUMNS, Completion, FrozenInsert, Result, Shape
from plainsql_server.engine.encoding.digests import RowHasher
from plainsql_server.engine.encoding.rows import RowRenderer
from plainsql_server.engine.encoding.shapes import Rendering, describe
from plainsql_server.engine.encoding.transaction_times import TransactionTimes
from plainsql_server.engine.execution.freezing import Freezing
from plainsql_server.engine.execution.plan import TransactionStep

# Types that are not built in have this OID or a higher one. This is hashed instead of their names.
_FIRST_OWN_OID = 16384
_OWN_TYPE = ""


class StepReading:
    """One step's result."""

    def __init__(self, step: TransactionStep, freezing: Freezing | None, times: TransactionTimes, key: bytes) -> None:
        self.step = step
        self.freezing = freezing
        # The number of columns at the end that are not the caller's.
        self.hidden = 0 if freezing is None else 1
        self.shape: Shape = NO_COLUMNS
        self.renderer: RowRenderer | None = None
        self.rows: list[bytes] = []
        # Their size.
        self.size_bytes = 0
        self.row_count = 0
        self.tag = b""
        self._times = times
        self._key = key
        self._hasher: RowHasher | None = None

    def start(self, rendering: Rendering, result: PGresult) -> RowRenderer:
        """Takes the description of the result. Returns the renderer for its rows."""
        self.shape, self.renderer = rendering.shape, rendering.rows
        if self.step.is_hashed:
            described = zip(describe(result, self.hidden), rendering.shape.types, strict=True)
            # The names of customers' types are cached, so another process may still have an old one.
            columns = [(name, type_ if oid < _FIRST_OWN_OID else _OWN_TYPE) for (name, oid), type_ in described]
            self._hasher = RowHasher(columns, self._times, self._key)
        return rendering.rows

    async def hash(self, result: PGresult, max_bytes: int, *, is_long: bool) -> bool:
        """Hashes the rows of a chunk, if the result has digests. Returns whether it is not too large for that."""
        if self._hasher is None:
            return True
        if self._hasher.size_bytes > max_bytes:
            return False
        return await self._hasher.update(result, max_bytes, is_long=is_long)

    @property
    def hashed_bytes(self) -> int:
        return 0 if self._hasher is None else self._hasher.size_bytes

    def finish(self, completion: Completion, max_rows: int) -> Result:
        """The complete result."""
        step = self.step
        truncated = step.rows and self.row_count > max_rows
        result = Result(self.shape, self.rows, truncated, completion, 0, size_bytes=self.size_bytes)
        if not step.rows:
            result.row_count = self.row_count
        result.shows_columns, result.shows_digests = step.rows, step.digest
        if step.is_hashed:
            hasher = self._hasher or RowHasher((), self._times, self._key)
            result.digests = hasher.finish(completion.command, completion.affected_rows)
        if step.freeze is not None:
            result.frozen = self._frozen()
        return result

    def _frozen(self) -> FrozenInsert | str:
        if self.freezing is not None:
            return self.freezing.frozen(self.step.params)
        return self.step.freeze if isinstance(self.step.freeze, str) else "rejected"
