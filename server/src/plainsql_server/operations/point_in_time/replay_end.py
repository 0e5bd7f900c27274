"""Whether a restored cluster has replayed all that its archive has, and all that was received from the lost one.

    replay = await replay_of(dsn)
    end = await check_replayed(replay, archive, folder)

To PostgreSQL, a file of WAL that is missing or damaged is the end of the WAL: it opens the cluster, and says nothing.
It writes down where that was, in the history of the timeline that it begins then. So this looks for anything later.

A cluster that was opened too early has begun a timeline, and the archive may have it. The next restore follows that
one, and leaves the lost cell's timeline where the first restore ended. So a position counts only on its own timeline.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.point_in_time.child_process import asked_locally
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import archived_from
from plainsql_server.operations.point_in_time.received import (
    ReceivedEnd,
    file_name,
    parsed_position,
    place_of,
    received_end,
    received_files,
    shown_position,
    start_of,
)

# Nothing of a cluster that was not restored, or was stopped since: its last replay is another one. The history is one
# line for each timeline before this one, as `1<tab>0/5000060<tab>no recovery target specified`, with any reason.
_REPLAY = """
    SELECT setting, current_setting('data_directory'), coalesce(pg_last_xact_replay_timestamp()::text, ''),
           encode(pg_read_binary_file('pg_wal/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.history',
                                      0, 1000000, true), 'hex')
    FROM pg_settings
    WHERE name = 'wal_segment_size' AND NOT pg_is_in_recovery() AND pg_last_wal_replay_lsn() IS NOT NULL
"""
_ANCESTOR = re.compile(r"^(\d+)\t([0-9A-F]+/[0-9A-F]+)\t", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """The replay with which a cluster was restored."""

    ancestors: dict[int, int]
    """The timelines that it followed, the last one last, each with the position at which the next one began."""
    file_bytes: int
    data_folder: Path
    last_commit_at: str
    """As PostgreSQL shows it; empty if nothing was committed in what it replayed."""

    @property
    def timeline(self) -> int:
        """The last timeline that it followed."""
        return [*self.ancestors][-1]

    @property
    def end(self) -> int:
        """The position at which it ended."""
        return self.ancestors[self.timeline]

    def reached(self, timeline: int) -> int:
        """The position up to which it replayed a timeline; 0 if it did not follow it.

        It may have ended before the position at which it was to leave an ancestor.
        """
        if timeline not in self.ancestors:
            return 0
        return min(end for each, end in self.ancestors.items() if each >= timeline)

    def includes(self, name: str) -> bool:
        """Whether a file of WAL, by its name, is of a timeline that it followed, and not later than that was left.

        An ancestor may have files that are later than its own end: those that were written before a cluster was
        restored to an earlier moment.
        """
        timeline = int(name[:8], 16)
        return timeline == self.timeline or start_of(name, self.file_bytes) < self.ancestors.get(timeline, 0)

    def has_later(self, name: str) -> bool:
        """Whether it includes a file that begins where the replay ended, or later."""
        return self.includes(name) and start_of(name, self.file_bytes) >= self.end


async def replay_of(dsn: str) -> ReplayEnd:
    """Ask a restored cluster. Raises RequestError if it is none, or was restarted since."""
    size, _, rest = (await asked_locally(_REPLAY, dsn)).partition("|")
    folder, _, rest = rest.partition("|")
    committed_at, _, history = rest.rpartition("|")
    found = _ANCESTOR.findall(bytes.fromhex(history).decode())
    if not found:
        raise RequestError("archive_failed", "This cluster was not restored, or has been restarted since.")
    ancestors = {int(timeline): parsed_position(end) for timeline, end in found}
    return ReplayEnd(ancestors, int(size), Path(folder), committed_at)


async def check_replayed(replay: ReplayEnd, archive: Archive, folder: Path) -> ReceivedEnd:
    """Raise RequestError if there is anything later in the archive or in the folder of what was received.

    Returns the end of what was received.
    """
    end = await received_end(folder)
    if end is None:
        raise RequestError("archive_failed", f"Nothing was received in {folder}.")
    received = [file.name for file in received_files(folder)]
    archived = await archived_from(archive, place_of(replay.end, replay.file_bytes))
    check_followed(replay, end, hint="Restore the cell again{}.")
    if end.last_record < replay.reached(end.timeline) and not any(map(replay.has_later, archived)):
        return end
    lacking = lacking_file(replay, {*archived, *received})
    if lacking is not None:
        raise RequestError(
            "archive_too_short",
            f"The WAL was replayed up to {shown_position(replay.end)}. Neither the archive nor what was received has"
            f" the file {lacking}, and there are later ones.",
            hint="See `A file of the WAL is missing` in docs/backups.md.",
        )  # fmt: skip
    name = file_name(replay.timeline, replay.end, replay.file_bytes)
    raise RequestError(
        "archive_too_short",
        f"The WAL was replayed up to {shown_position(replay.end)}, and there is more. The file {name}, or the next one,"
        " is damaged or was not placed.",
        hint=f"Restore again{_on(replay.timeline)}. PostgreSQL's log and `pgbackrest verify` say more.",
    )


def check_reached(replay: ReplayEnd, end: ReceivedEnd) -> None:
    """Raise RequestError if a replay ended before the last record that was received."""
    check_followed(
        replay, end,
        hint="If the cell has been in service since, leave out what was received. Otherwise restore the cell again{}.",
    )  # fmt: skip
    if end.last_record >= replay.reached(end.timeline):
        raise RequestError(
            "archive_too_short",
            f"The WAL was replayed up to {shown_position(replay.end)}; what was received has a record at"
            f" {shown_position(end.last_record)}. Something between the two is missing or damaged.",
            hint="Restore again. PostgreSQL's log and `pgbackrest verify` say which file it is.",
        )  # fmt: skip


def check_followed(replay: ReplayEnd, end: ReceivedEnd, *, hint: str) -> None:
    """Raise RequestError if a replay left the timeline of what was received before its last record.

    In the hint, `{}` stands for how to follow it.
    """
    left = replay.ancestors.get(end.timeline, 0)
    if end.timeline == replay.timeline or end.last_record < left:
        return
    raise RequestError(
        "archive_too_short",
        f"What was received has a record at {shown_position(end.last_record)} of the timeline {end.timeline}, which the"
        f" replay {f'left at {shown_position(left)}' if left else 'did not follow'}. It followed the timeline"
        f" {replay.timeline}, which a cluster may have begun that was opened too early.",
        hint=hint.format(_on(end.timeline)),
    )  # fmt: skip


def _on(timeline: int) -> str:
    """How pgBackRest follows a timeline."""
    return (
        f", with --target-timeline=0x{timeline:08X}, and place what was received: `A file of the WAL is missing` in"
        " docs/backups.md"
    )


def lacking_file(replay: ReplayEnd, names: Collection[str]) -> str | None:
    """The first file that is missing from where the replay ended on, if there are later ones."""
    # Not of the timeline that the cluster has begun itself, nor of what was abandoned.
    places = {name[8:] for name in names if replay.includes(name)}
    position = replay.end
    while (place := place_of(position, replay.file_bytes)) <= max(places, default=""):
        if place not in places:
            return file_name(replay.timeline, position, replay.file_bytes)
        position += replay.file_bytes
    return None
