"""The databases from whose files a database may have been copied after a backup.

    names = await copied_from(directory, origin, archive, point)

The WAL has the content of a small branch. Of a large one, it has only that the files of another database are to be
copied (`engine/admin/branching.py`), so replaying it needs the content that these have in the backup, or get from the
WAL, or from a third database.
"""

from datetime import datetime, timedelta

from plainsql_server.directory.branching.lineage import had_branches, lineage, of_others
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import BaseBackup, base_backup

# The directory's clock and the cell's may differ. A database that is needlessly restored too costs only time.
_CLOCKS_DIFFER = timedelta(hours=1)
_ENGINE_PREFIX = "d_"


async def copied_from(
    directory: Directory, origin: DatabaseRecord, archive: Archive, point: datetime | None
) -> set[str]:
    """Their names on the cell, of those that are in the backup from which the moment is restored.

    Empty if the database was not copied since that backup began. If the directory can't tell what it was copied from,
    because that was replaced or moved since, these are all databases of the organization. Raises RequestError if
    pgBackRest can't read the archive.
    """
    backup = await base_backup(archive, point)
    if not await had_branches(directory, origin.organization_id):
        return set()
    steps = await lineage(directory, origin.id)
    found: set[str] = set()
    for position, step in enumerate(steps):
        if position > 0:
            found.add(step.engine_name)
        if not step.is_certain:
            return await _all_of(directory, origin, backup)
        if step.content_since < backup.began_at - _CLOCKS_DIFFER:
            # It is in the backup as it was made.
            break
    return (found - {origin.engine_name}) & backup.databases.keys()


async def _all_of(directory: Directory, origin: DatabaseRecord, backup: BaseBackup) -> set[str]:
    """All databases in the backup that may be of the organization. A restored directory may not know some."""
    ours = {name for name in backup.databases if name.startswith(_ENGINE_PREFIX)} - {origin.engine_name}
    return ours - await of_others(directory, origin.organization_id, ours)
