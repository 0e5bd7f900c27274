"""Hashes results: two results with the same digest have the same columns and rows.

    hasher = RowHasher(columns, times, digest_key(record_secret))
    await hasher.update(result, max_bytes, is_long=False)
    digests = hasher.finish("SELECT", 0)

What is hashed is what PostgreSQL sent, in its text format, and not the JSON made of it, so options of the answer don't
matter. Columns count by name and by the name of their type, if it is built in. Of other types nothing counts: their
names can change, and the OID of one that was created in the same transaction is another one in each run.

A row is hashed as its values with NUL bytes between them, which no value contains, followed by the positions of its
nulls if there are any. The multiset digest is made of the sum of the rows' hashes, so their order doesn't matter, and
nothing is kept of a row but that sum.

Every hash has a key, which only the service knows. Without it, rows whose hashes have a wanted sum can be found in some
2^32 steps (Wagner's generalized birthday attack), by anybody who can store many rows of their choice in a table.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec
from psycopg.pq.abc import PGresult

from plainsql_server.core.loop_share import share_loop
from plainsql_server.core.result import Digests
from plainsql_server.engine.encoding.long_values import View, views
from plainsql_server.engine.encoding.transaction_times import SLICE_BYTES, TransactionTimes

# The size of a digest, and of the hash of a row. That is larger, because it is added to others.
_DIGEST_BYTES = 16
_ROW_BYTES = 32
_MODULUS_MASK = (1 << (8 * _ROW_BYTES)) - 1
# A row takes time even if it is empty: little counts as size, so that many small rows can be hashed, but more as work.
_COST_OF_ROW = 32
_WORK_OF_ROW = 1024
# Looking at a value where it is takes longer than hashing a short one.
_WORK_OF_VIEW = 256
# Other requests run after this much work, in bytes to hash: a fraction of a millisecond.
_PAUSE_AFTER = 16 * 1024


def digest_key(record_secret: str) -> bytes:
    """The key of a database's digests. All processes derive the same one, now and after a restart."""
    return blake2b(record_secret.encode(), digest_size=_ROW_BYTES, person=b"plainsql digests").digest()


class RowHasher:
    """Hashes one result, chunk by chunk."""

    def __init__(self, columns: Sequence[tuple[str, str]], times: TransactionTimes, key: bytes) -> None:
        """`columns` are the names of the result's columns and of their types."""
        self._columns = columns
        self._numbers = range(len(columns))
        self._times = times
        # Copying a hash that has its key is faster than making one.
        self._row = blake2b(digest_size=_ROW_BYTES, key=key, person=b"row")
        self._ordered = blake2b(digest_size=_DIGEST_BYTES, key=key, person=b"ordered")
        self._multiset = blake2b(digest_size=_DIGEST_BYTES, key=key, person=b"multiset")
        self._sum = 0
        self._count = 0
        # What was hashed so far, and the work since the last pause. Searching for times counts, too.
        self.size_bytes = 0
        self._work = 0

    async def update(self, result: PGresult, max_bytes: int, *, is_long: bool) -> bool:
        """Adds the rows of a chunk. Returns False, and adds no more, once there are more bytes than that.

        `is_long` makes no difference to the digests. Rows of a chunk that may be long are not copied.
        """
        value_at: Callable[[int, int], bytes | None] = result.get_value
        view_at = views(result) if is_long else None
        hashes: list[bytes] = []
        for row in range(result.ntuples):
            hashed = self._row.copy()
            self._spend(_COST_OF_ROW)
            self._work += _WORK_OF_ROW
            if view_at is not None:
                await self._hash_views(view_at, row, hashed, max_bytes)
            elif len(joined := _joined([value_at(row, column) for column in self._numbers])) <= SLICE_BYTES:
                self._hash_short(joined, hashed)
            else:
                await self._hash_long(joined, hashed, max_bytes)
            if self._work > _PAUSE_AFTER:
                await self._pause()
            if self.size_bytes > max_bytes:
                return False
            hashes.append(hashed.digest())
        self._sum = (self._sum + sum([int.from_bytes(each, "little") for each in hashes])) & _MODULUS_MASK
        self._count += result.ntuples
        self._ordered.update(b"".join(hashes))
        return True

    async def _hash_views(self, view_at: View, row: int, hashed: "blake2b", max_bytes: int) -> None:
        """Hashes what `_joined` would return. No time contains a NUL byte, so none is in two values."""
        nulls = []
        for column in self._numbers:
            value = view_at(row, column)
            self._work += _WORK_OF_VIEW
            if self._work > _PAUSE_AFTER:
                await self._pause()
            if column:
                hashed.update(b"\0")
                self._spend(1)
            if value is None:
                nulls.append(b"%d" % column)
            elif len(value) <= SLICE_BYTES:
                self._hash_short(bytes(value), hashed)
            else:
                await self._hash_long(value, hashed, max_bytes)
            if self.size_bytes > max_bytes:
                return
        if nulls:
            hashed.update(b"\0" + b",".join(nulls))

    def _hash_short(self, value: bytes, hashed: "blake2b") -> None:
        hashed.update(self._times.hide(value))
        self._spend(len(value))

    async def _hash_long(self, value: bytes | memoryview, hashed: "blake2b", max_bytes: int) -> None:
        for part in self._times.hide_in_slices(value):
            hashed.update(part)
            self._spend(len(part))
            if self._work > _PAUSE_AFTER:
                await self._pause()
                if self.size_bytes > max_bytes:
                    return

    def _spend(self, size_bytes: int) -> None:
        spent = size_bytes + self._times.cost_bytes
        self._times.cost_bytes = 0
        self.size_bytes += spent
        self._work += spent

    async def _pause(self) -> None:
        """Lets other requests run."""
        self._work = 0
        await share_loop()

    def finish(self, command: str, affected_rows: int) -> Digests:
        """The digests of the complete result."""
        head = msgspec.json.encode([self._columns, command, affected_rows, self._count])
        ordered = self._ordered.copy()
        ordered.update(head)
        multiset = self._multiset.copy()
        multiset.update(self._sum.to_bytes(_ROW_BYTES, "little") + head)
        return Digests(ordered.hexdigest(), multiset.hexdigest())


def _joined(values: list[bytes | None]) -> bytes:
    if None not in values:
        return b"\0".join(values)  # type: ignore[arg-type]  # there is no None
    nulls = b",".join([b"%d" % at for at, value in enumerate(values) if value is None])
    return b"\0".join([value or b"" for value in values] + [nulls])
