"""Doctor's checks of continuous archives: whether WAL is archived, when a cell was last backed up, rehearsals.

    yield from archiving(check, settings, measures)
    yield archive_state("directory", await measure_archiving(connection))
    findings = await archive_backups(check, cell, settings["archive_command"], measures, is_here=True)
    yield from rehearsals(check, measures, state)

A cell knows when pgBackRest has backed it up, and on its own machine, pgBackRest says what the archive has. It is only
asked by those who may read its key: root, and the user that PostgreSQL runs as.
"""

import asyncio
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.upkeep.rehearsal_record import RehearsalState
from plainsql_server.engine.admin.measures import (
    ARCHIVE_WITHIN_S,
    ArchivingMeasures,
    CellMeasures,
    archive_backup_age_s,
)
from plainsql_server.operations.files.archive import STANZA
from plainsql_server.operations.findings import Finding, broken, good, warning
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import last_backup

# As the alert. There is one every night, and one may fail.
_BACKUP_MAX_AGE_S = 50 * 3_600.0
# As the alert. The timer runs every night.
_REHEARSAL_MAX_AGE_S = 8 * 86_400.0
# A worker is seen every 5 seconds, and is restarted after 10.
_WORKER_MAX_AGE_S = 300.0
_REHEARSE = (
    "Run `plainsql-server backup rehearse`, or read the log of plainsql-archive-rehearsal.service: docs/backups.md."
)
_BACK_UP = (
    "Read the log of plainsql-archive@full.service and plainsql-archive@diff.service, and see whether their timers are"
    " enabled: docs/backups.md."
)
_BY_HAND = "Read PostgreSQL's log, and run archive_command by hand as the user that PostgreSQL runs as."
# An archive may be on another machine's disk.
_ANSWER_TIMEOUT_S = 30.0
# A word that names a secret, or a password in a URL, or a key as cloud providers issue them.
_SECRET = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|api[_-]?key|access[_-]?key|sas)(?![\w-]*file)[\w-]*\s*[=:]"
    r"|--(password|token|secret)\s|://[^\s/:@]+:[^\s/@]+@|\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{20,}"
)


def archiving(check: str, settings: dict[str, str], measures: CellMeasures) -> Iterator[Finding]:
    """Check that WAL is archived, and that no command that customers can read holds a secret."""
    if measures.is_archiving:
        yield archive_state(check, measures, _by_hand(settings.get("archive_command", ""), measures))
    elif not measures.standbys:
        yield warning(
            check, "It has no standby and archives no WAL: if its disk fails, all changes since the backups are lost.",
            "Set up archiving (archive_mode, archive_command), or a cell of three machines: deploy/cell-ha.",
        )  # fmt: skip
    for name, value in settings.items():
        if name.endswith("_command") and looks_secret(value):
            yield warning(
                check, f"{name} looks as if it contains a secret. Every customer of the cell can read it.",
                "Put the secret into a file that only PostgreSQL's user can read, and replace it.",
            )  # fmt: skip


def archive_state(check: str, measures: ArchivingMeasures, by_hand: str | None = None) -> Finding:
    """Check a server that archives its WAL: the directory's or a cell's. `by_hand` is how to learn why that fails."""
    if measures.is_archiving_failing:
        return broken(check, _failure(measures), by_hand or _BY_HAND)
    lag_s = measures.archive_lag_s or 0
    if lag_s > ARCHIVE_WITHIN_S:
        return warning(
            check, f"What it wrote in the last {lag_s:.0f} s is not archived.",
            "Set archive_timeout to 50s, and see whether archive_command is empty or slow, or its target is.",
        )  # fmt: skip
    return good(check, f"WAL is archived; {lag_s:.0f} s are not yet.")


def _failure(measures: ArchivingMeasures) -> str:
    file = f"the WAL file {measures.failed_wal}" if measures.failed_wal else "the last WAL file"
    found = f"It does not archive: archive_command failed for {file}."
    if measures.files_to_archive:
        found += f" {measures.files_to_archive} files wait, since {measures.archive_lag_s or 0:.0f} s at most."
    return f"{found} Its disk fills up until they are archived."


def _by_hand(command: str, measures: CellMeasures) -> str | None:
    """How to learn why archiving fails: by pgBackRest's command itself, which can be repeated without harm."""
    archive = _archive_of(command)
    if archive is None or measures.failed_wal is None:
        return None
    push = (
        "runuser", "-u", "postgres", "--", "pgbackrest", f"--config-path={archive.config_folder}",
        f"--stanza={archive.stanza}", "archive-push", f"{measures.data_directory}/pg_wal/{measures.failed_wal}",
    )  # fmt: skip
    return f"Read its log, or run this on its machine, which says why: `{shlex.join(push)}`."


async def archive_backups(
    check: str, cell: CellRecord, command: str, measures: CellMeasures, *, is_here: bool
) -> list[Finding]:
    """Check that pgBackRest has backed the cell up lately. `is_here` says that this is the cell's machine."""
    age_s = archive_backup_age_s(measures, cell.created_at)
    if age_s is None:
        return []
    archive = _archive_of(command)
    if is_here and archive is not None and _may_read(archive):
        return [await _asked(check, archive)]
    if measures.has_archive_backup:
        return [_aged(check, age_s)]
    return [warning(check, f"It knows of no backup in its archive, since {age_s / 3_600:.0f} h.", _BACK_UP)]


async def _asked(check: str, archive: Archive) -> Finding:
    """What pgBackRest says of the last backup."""
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            found = await last_backup(archive)
    except TimeoutError:
        wrong = f"pgBackRest does not say within {_ANSWER_TIMEOUT_S:.0f} s what its archive has."
        return broken(check, wrong, "See whether the archive's disk or server responds.")
    except ServiceError as error:
        return broken(
            check, error.message, error.hint or f"See whether {archive.config_folder} is right: its key, too."
        )
    if found is None:
        return broken(check, "Its archive has no backup, so that nothing can be restored.", _BACK_UP)
    if found.has_damage:
        return broken(
            check, f"The last backup in its archive, {found.label}, has damaged pages, as the cell had them.",
            f"See `pgbackrest info --set={found.label}`, and check the cell with pg_amcheck.",
        )  # fmt: skip
    return _aged(check, (now() - found.ended_at).total_seconds())


def _aged(check: str, age_s: float) -> Finding:
    shown = f"The last backup in its archive is {age_s / 3_600:.0f} h old."
    return warning(check, shown, _BACK_UP) if age_s > _BACKUP_MAX_AGE_S else good(check, shown)


def _archive_of(command: str) -> Archive | None:
    """The archive that an archive_command pushes to, if it is one of pgBackRest's, as `cell files` writes it."""
    try:
        words = [word.partition("=") for word in shlex.split(command)]
    except ValueError:
        return None
    options = {name: value for name, _, value in words}
    folder = options.get("--config-path")
    return Archive(Path(folder), options.get("--stanza", STANZA)) if folder else None


def _may_read(archive: Archive) -> bool:
    try:
        return os.geteuid() in (0, archive.config_folder.stat().st_uid)
    except OSError:
        return False


def rehearsals(check: str, measures: CellMeasures, state: RehearsalState | None) -> Iterator[Finding]:
    """Check that a restore from the cell's archive was rehearsed lately, and succeeded."""
    if not measures.has_pgbackrest or state is None:
        return
    days = state.age_s / 86_400
    if state.is_failing:
        yield warning(check, "The last rehearsal of a restore from its archive failed.", _REHEARSE)
    elif state.age_s > _REHEARSAL_MAX_AGE_S:
        since = f"for {days:.0f} days" if state.has_succeeded else "since the cell was added"
        yield warning(check, f"No restore from its archive was rehearsed {since}.", _REHEARSE)
    elif state.has_succeeded:
        yield good(check, f"A restore from its archive was rehearsed {days:.1f} days ago.")


def restore_workers(check: str, age_s: float | None) -> Iterator[Finding]:
    """Check that customers can restore to a point in time, if they could before."""
    if age_s is None:
        return
    if age_s > _WORKER_MAX_AGE_S:
        yield warning(
            check, f"No worker has restored databases for its customers for {age_s / 60:.0f} minutes.",
            "Start plainsql-archive-restores.service, or read its log: docs/backups.md.",
        )  # fmt: skip
    else:
        yield good(check, "A worker restores databases for its customers.")


def looks_secret(command: str) -> bool:
    """Whether a command line seems to contain a password, a token or a key, rather than the name of a file."""
    return _SECRET.search(command) is not None
