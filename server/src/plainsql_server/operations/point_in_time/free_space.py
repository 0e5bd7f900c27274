"""Keeps a part of the disk of a work folder free, for the command, a worker and a rehearsal alike.

    await check_space_for_databases(cell, database, sources, folder, copies=2, free_ratio=FREE_RATIO)
    async with keeping_free(folder, FREE_RATIO):
        check_space_for_wal(folder, replay.total_bytes, FREE_RATIO)
        ...

What stays free is the larger of a share of the disk and 1 GiB. The disk may be the cell's, which stops for all its
customers if it is full, and what a cell needs grows with its disk. The least does not: it is for what is written
between two looks, and until all processes have ended.

Estimates before anything is written refuse what can't fit. How much a restore really takes is not known before: the
files of the other databases are empty, and take as much room as the WAL has of their pages and of copies of them, which
all customers of the cell decide. So the block is ended as soon as less is free.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from plainsql_server.core.errors import RequestError, ServiceError
from plainsql_server.core.tasks import end
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin.measures import KEPT_FREE_RATIO, disk_space_of
from plainsql_server.engine.admin.provisioning import sizes_bytes

# The share of the disk that stays free, unless the operator chooses another one.
FREE_RATIO = KEPT_FREE_RATIO
_FREE_LEAST_BYTES = 1024**3
_LOOK_EVERY_S = 0.1
# A cancellation can get lost (`core/tasks.py`). What it ends takes less than this.
_CANCEL_AGAIN_S = 30.0
# What every cluster has: PostgreSQL's own databases, and the first files of WAL.
_CLUSTER_BYTES = 128 * 1024**2
# PostgreSQL removes WAL that it has replayed; of the spare cluster's, it keeps no more than max_wal_size.
_WAL_MOST_BYTES = 4 * 1024**3
_HINT = "Use a --work-folder on a larger disk. If the disk is not a cell's, less can stay free: --free-percent."


@asynccontextmanager
async def keeping_free(folder: Path, free_ratio: float) -> AsyncIterator[None]:
    """Cancels the block and raises RequestError as soon as less is free on the disk of the folder than must stay free.

    Raises it before the block if that is so already. A block that ends without an error nevertheless is done.
    """
    task = asyncio.current_task()
    assert task is not None
    if (full := _shortage(folder, free_ratio)) is not None:
        raise full
    guard = _Guard(folder, free_ratio, task)
    watching = asyncio.create_task(guard.watch())
    has_others = False
    try:
        try:
            yield
        finally:
            try:
                await end(watching)
            finally:
                # Whatever the block did with them. Otherwise, a timeout around it would end with them.
                has_others = guard.take_back()
    except (Exception, asyncio.CancelledError) as error:
        # A driver may turn a cancellation into an error.
        if guard.full is None or (has_others and isinstance(error, asyncio.CancelledError)):
            raise
        raise guard.full from None


class _Guard:
    """Looks at a disk, and cancels a task when it is too full."""

    def __init__(self, folder: Path, free_ratio: float, task: "asyncio.Task[object]") -> None:
        self.full: RequestError | None = None
        self._folder, self._free_ratio, self._task = folder, free_ratio, task
        self._cancelled_before, self._cancelled = task.cancelling(), 0

    async def watch(self) -> None:
        while True:
            full = _shortage(self._folder, self._free_ratio)
            if full is not None:
                self.full = self.full or full
                self._cancelled += 1
                self._task.cancel()
            await asyncio.sleep(_LOOK_EVERY_S if full is None else _CANCEL_AGAIN_S)

    def take_back(self) -> bool:
        """Take back the cancellations that came from here. Returns whether there are others."""
        for _ in range(self._cancelled):
            self._task.uncancel()
        return self._task.cancelling() > self._cancelled_before


async def check_space_for_databases(
    cell: CellRecord, database: DatabaseRecord, sources: Collection[str], folder: Path, *, copies: int,
    free_ratio: float,
) -> None:  # fmt: skip
    """Raises RequestError if the folder has no room for so many copies of the database, and one of each of its sources.

    Each counts as large as it is now.
    """
    try:
        found = await sizes_bytes(cell.conninfo, cell.admin_role, [database.engine_name, *sources])
    except ServiceError:
        # The cell may be what was lost.
        found = {}
    size_bytes = found.get(database.engine_name) or 0
    sources_bytes = sum(found.get(name) or 0 for name in sources)
    what = f"a database of {size_bytes:,} bytes"
    if sources_bytes:
        what += f", and {sources_bytes:,} bytes of what it was copied from,"
    _check(folder, size_bytes * copies + sources_bytes + _CLUSTER_BYTES, what, free_ratio)


def check_space_for_wal(folder: Path, wal_bytes: int | None, free_ratio: float) -> None:
    """Raises RequestError if the folder has no room for the WAL that is to be replayed."""
    needed_bytes = min(wal_bytes or 0, _WAL_MOST_BYTES)
    _check(folder, needed_bytes, f"{needed_bytes:,} bytes of WAL", free_ratio)


def check_space_for_received(
    folder: Path, received_bytes: int, free_ratio: float | None, *, hint: str = _HINT
) -> None:  # fmt: skip
    """Raises RequestError if the folder has no room for files of received WAL, all of which are copied.

    Without a ratio, nothing has to stay free.
    """
    _check(folder, received_bytes, f"{received_bytes:,} bytes of received WAL", free_ratio, hint)


def _shortage(folder: Path, free_ratio: float) -> RequestError | None:
    free_bytes, kept_bytes = _free_and_kept_bytes(folder, free_ratio)
    if free_bytes >= kept_bytes:
        return None
    return RequestError(
        "no_space",
        f"{free_bytes:,} bytes of the disk of {folder} are free, and {kept_bytes:,} must stay free, so nothing is"
        " restored there.",
        hint=_HINT,
    )  # fmt: skip


def _check(folder: Path, needed_bytes: int, what: str, free_ratio: float | None, hint: str = _HINT) -> None:
    free_bytes, kept_bytes = _free_and_kept_bytes(folder, free_ratio)
    if needed_bytes + kept_bytes > free_bytes:
        kept = f", of which {kept_bytes:,} must stay free" if kept_bytes else ""
        raise RequestError(
            "no_space",
            f"To restore {what} takes {needed_bytes:,} bytes in {folder}, and {free_bytes:,} bytes are free"
            f" there{kept}.",
            hint=hint,
        )


def _free_and_kept_bytes(folder: Path, free_ratio: float | None) -> tuple[int, int]:
    """How much is free on the disk, and how much must stay so."""
    space = disk_space_of(folder)
    if free_ratio is None:
        return space.free_bytes, 0
    return space.free_bytes, max(_FREE_LEAST_BYTES, int(space.total_bytes * free_ratio))
