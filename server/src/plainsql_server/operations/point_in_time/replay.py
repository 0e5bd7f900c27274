"""How much of the WAL a spare cluster has replayed, and how much it has to replay.

    replay = await planned_replay(archive, point, data, log, segment_bytes)
    replay.total_bytes, replay.done_bytes()

The total is an estimate: the WAL from the start of the backup to the end of the file that was archived first after the
moment. It is too small if others were still waiting to be archived.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import file_archived_after

_LSN = r"([0-9A-F]+)/([0-9A-F]+)"
_START = re.compile(rf"^START WAL LOCATION: {_LSN} ", re.MULTILINE)
_REPLAYED = re.compile(rf"(?:redo done at|current LSN:) {_LSN}")
# PostgreSQL writes a line whenever a connection is refused, so the last position is not far from the end.
_TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Replay:
    """The WAL that a cluster replays: from one position to another, in bytes."""

    start: int
    end: int
    log: Path
    """PostgreSQL's log, in which it says how far it is."""

    @property
    def total_bytes(self) -> int | None:
        """None if it is unknown."""
        return self.end - self.start if self.end > self.start else None

    def done_bytes(self) -> int:
        """How much is replayed, and no more than the total."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            shown = _REPLAYED.findall(file.read().decode(errors="replace"))
        position = _position(*shown[-1]) if shown else self.start
        return max(0, min(position, self.end) - self.start)


async def planned_replay(archive: Archive, point: datetime, data: Path, log: Path, segment_bytes: int) -> Replay:
    """What a cluster that pgBackRest has just restored must replay to be as it was at the moment."""
    found = _START.search((data / "backup_label").read_text())
    start = _position(*found.groups()) if found else 0
    name = await file_archived_after(archive, point)
    return Replay(start, start if name is None or found is None else _end_of(name, segment_bytes), log)


def _position(high: str, low: str) -> int:
    return (int(high, 16) << 32) + int(low, 16)


def _end_of(name: str, segment_bytes: int) -> int:
    """The position after a file of WAL. Its name is the timeline, and the position in two parts."""
    return (int(name[8:16], 16) << 32) + (int(name[16:24], 16) + 1) * segment_bytes
