"""Backs up the directory and every database into a folder, and deletes old backups: the work of a timer.

    run = ScheduledBackups(directory, settings.directory_dsn, commands, report)
    failures = await run.into(folder, keep_days=14)

A database that can't be backed up does not stop the others, nor the deletion of old backups. It is tried again at the
end of the run, and is reported. What was done is recorded in the directory, where `doctor` and the metrics find it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ConflictError, ServiceError
from plainsql_server.directory import databases as stored
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseState
from plainsql_server.directory.upkeep import backup_record
from plainsql_server.directory.upkeep.backup_record import DIRECTORY
from plainsql_server.operations.backup import DUMPABLE, backup_database, backup_directory
from plainsql_server.operations.upkeep.backup_folder import BackupFolder
from plainsql_server.operations.upkeep.pipeline import Commands, writing_through

# Receives a line for each backup.
Report = Callable[[str], None]


class _NoProgress:
    """A timer has no one to show progress to."""

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:
        pass

    def at(self, done: int) -> None:
        pass


class ScheduledBackups:
    """One run over all databases. `commands` are the programs that each backup passes through."""

    def __init__(self, directory: Directory, dsn: str, commands: Commands, report: Report) -> None:
        self._directory = directory
        self._dsn = dsn
        self._commands = commands
        self._report = report

    async def into(self, path: Path, keep_days: int) -> list[str]:
        """Back up everything and delete old backups. Returns what failed, one line each.

        Raises ServiceError if the directory is unavailable at the beginning, ConflictError if the folder is in use or
        holds another directory's backups. Nothing is deleted then.
        """
        with BackupFolder(path).locked() as folder:
            states = await backup_record.database_states(self._directory)
            _check_owner(folder, states)
            targets = [DIRECTORY, *(each for each, state in states.items() if DatabaseState(state) in DUMPABLE)]
            failures = await self._try_all(folder, targets)
            # The next attempt may meet no lock, and a cell that answers.
            failures = await self._try_all(folder, list(failures))
            existing = {DIRECTORY, *(each for each, state in states.items() if state != DatabaseState.DELETED)}
            removed = folder.prune(existing, keep_days, now())
        self._report(f"{len(targets) - len(failures)} of {len(targets)} backed up; {len(removed)} old backups deleted.")
        return [f"{target}: {why}" for target, why in failures.items()]

    async def _try_all(self, folder: BackupFolder, targets: Sequence[str]) -> dict[str, str]:
        failures = {}
        for target in targets:
            try:
                await self._back_up(folder, target)
            except (ServiceError, OSError) as error:
                failures[target] = await self._failed(target, error)
        return failures

    async def _back_up(self, folder: BackupFolder, target: str) -> None:
        database = None if target == DIRECTORY else await stored.find_by_id(self._directory, target)
        if target != DIRECTORY and (database is None or database.state not in DUMPABLE):
            self._report(f"{target} was deleted meanwhile.")
            return
        with folder.new_file(target, now()) as file, writing_through(self._commands, file) as stream:
            if database is None:
                await backup_directory(self._directory, self._dsn, stream, _NoProgress())
            else:
                await backup_database(self._directory, database, stream, _NoProgress())
        size_bytes = folder.backups(target)[-1].stat().st_size
        await backup_record.record_success(self._directory, target, size_bytes)
        self._report(f"{target} {size_bytes / 1e6:.1f} MB")

    async def _failed(self, target: str, error: ServiceError | OSError) -> str:
        why = error.message if isinstance(error, ServiceError) else f"{error.strerror}."
        try:
            await backup_record.record_failure(self._directory, target)
        except ServiceError as unrecorded:
            why += f" This could not be recorded: {unrecorded.message}"
        self._report(f"{target} failed: {why}")
        return why


def _check_owner(folder: BackupFolder, states: dict[str, str]) -> None:
    """Raises ConflictError if the folder has backups, and none is of a database that this directory knows."""
    there = [target for target in folder.targets() if target != DIRECTORY]
    if there and not any(target in states for target in there):
        raise ConflictError(
            "backups_of_others",
            f"{folder.path} holds backups, and none of a database that this directory knows.",
            hint="Use the folder of this directory's backups, or an empty one. Nothing was deleted.",
        )
