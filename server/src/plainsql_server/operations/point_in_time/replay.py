"""How much of the WAL a spare cluster has replayed, and how much it has to replay.

    replay = await planned_replay(archive, point, folder, segment_bytes)
    replay.total_bytes, replay.done_bytes()

The total is an estimate: the WAL from the start of the backup to the end of the file that was archived first after the
moment. It is too small if others were still waiting to be archived. If it can't be made, the restore continues without.
"""

import logging
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from plainsql_server.core.errors import described
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import file_archived_after
from plainsql_server.operations.point_in_time.spare_folder import SpareFolder

_LSN = r"([0-9A-F]+)/([0-9A-F]+)"
_START = re.compile(rf"^START WAL LOCATION: {_LSN} ", re.MULTILINE)
_REPLAYED = re.compile(rf"(?:redo done at|current LSN:) {_LSN}")
_BLOCK_BYTES = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Replay:
    """The WAL that a cluster replays: from one position to another, in bytes."""

    start: int
    end: int
    log: Path
    """PostgreSQL's log, in which it says how far it is."""
    _read_bytes: int = field(default=0, init=False)
    _position: int = field(default=0, init=False)

    @property
    def total_bytes(self) -> int | None:
        """None if it is unknown."""
        return self.end - self.start if self.end > self.start else None

    def done_bytes(self) -> int:
        """How much is replayed, and no more than the total. Reads what was added to the log since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read_bytes)
            # Up to the last whole line.
            while added := file.read(_BLOCK_BYTES).rpartition(b"\n")[0]:
                shown = _REPLAYED.findall(added.decode(errors="replace"))
                if shown:
                    self._position = _parsed(*shown[-1])
                self._read_bytes += len(added) + 1
                file.seek(self._read_bytes)
        return max(0, min(self._position, self.end) - self.start)


async def planned_replay(archive: Archive, point: datetime, folder: SpareFolder, segment_bytes: int) -> Replay:
    """What a cluster that pgBackRest has just restored must replay to be as it was at the moment."""
    try:
        start, end = await _estimated(archive, point, folder, segment_bytes)
    except Exception as error:
        _log.warning("How much WAL has to be replayed is unknown: %s", described(error))
        start = end = 0
    return Replay(start, end, folder.log)


async def _estimated(archive: Archive, point: datetime, folder: SpareFolder, segment_bytes: int) -> tuple[int, int]:
    found = _START.search(folder.read("backup_label"))
    name = await file_archived_after(archive, point)
    if found is None or name is None:
        return 0, 0
    return _parsed(*found.groups()), _end_of(name, segment_bytes)


def _parsed(high: str, low: str) -> int:
    return (int(high, 16) << 32) + int(low, 16)


def _end_of(name: str, segment_bytes: int) -> int:
    """The position after a file of WAL. Its name is the timeline, and the position in two parts."""
    return (int(name[8:16], 16) << 32) + (int(name[16:24], 16) + 1) * segment_bytes
