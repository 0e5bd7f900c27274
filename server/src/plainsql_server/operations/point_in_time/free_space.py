"""Looks whether a folder has room for a spare cluster, before anything is written.

    await check_space_for_database(cell, database, folder, copies=2)
    check_space_for_wal(folder, replay.total_bytes)

Both are estimates: nobody knows how large a database was. A worker also looks while it restores (`worker.py`).
"""

import os
from pathlib import Path

from plainsql_server.core.errors import RequestError, ServiceError
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin.provisioning import sizes_bytes

# What every cluster has: PostgreSQL's own databases, and the first files of WAL.
_CLUSTER_BYTES = 128 * 1024**2
# PostgreSQL removes WAL that it has replayed; of the spare cluster's, it keeps no more than max_wal_size.
_WAL_MOST_BYTES = 4 * 1024**3


async def check_space_for_database(cell: CellRecord, database: DatabaseRecord, folder: Path, *, copies: int) -> None:
    """Raises RequestError if the folder has no room for so many copies of a database that is as large as it is now."""
    try:
        found = await sizes_bytes(cell.conninfo, cell.admin_role, [database.engine_name])
    except ServiceError:
        # The cell may be what was lost.
        found = {}
    size_bytes = found.get(database.engine_name) or 0
    _check(folder, size_bytes * copies + _CLUSTER_BYTES, f"a database of {size_bytes:,} bytes")


def check_space_for_wal(folder: Path, wal_bytes: int | None) -> None:
    """Raises RequestError if the folder has no room for the WAL that is to be replayed."""
    needed_bytes = min(wal_bytes or 0, _WAL_MOST_BYTES)
    _check(folder, needed_bytes, f"{needed_bytes:,} bytes of WAL")


def _check(folder: Path, needed_bytes: int, what: str) -> None:
    found = os.statvfs(folder)
    free_bytes = found.f_bavail * found.f_frsize
    if needed_bytes > free_bytes:
        raise RequestError(
            "no_space",
            f"To restore {what} takes {needed_bytes:,} bytes in {folder}, and {free_bytes:,} bytes are free there.",
            hint="Use a --work-folder on a larger disk.",
        )
