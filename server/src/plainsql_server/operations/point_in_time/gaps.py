"""Finds the file of the WAL that an archive lacks, when PostgreSQL could not replay any further.

    name = await missing_file(archive, folder, log, segment_bytes)

To PostgreSQL, a file that is missing in the middle looks like the end of the archive. Only the archive tells whether
there are later ones.
"""

import re
from contextlib import suppress

from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import has_file, newest_file
from plainsql_server.operations.point_in_time.spare_folder import SpareFolder

_REPLAYED = re.compile(r'restored log file "([0-9A-F]{24})" from archive')
_FIRST = re.compile(r"^START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)", re.MULTILINE)
# A name is the timeline and, in two parts, the number of the file, which is the same on each timeline.
_TIMELINE_LENGTH = 8


async def missing_file(archive: Archive, folder: SpareFolder, log: str, segment_bytes: int) -> str | None:
    """The file that a cluster needed next and that the archive does not have, although it has later ones.

    None if there is no such file. `log` is what PostgreSQL said while it replayed the WAL in the folder.
    """
    replayed = _REPLAYED.findall(log)
    wanted = _after(replayed[-1], segment_bytes) if replayed else _first(folder)
    newest = await newest_file(archive)
    if wanted is None or newest is None or newest[_TIMELINE_LENGTH:] <= wanted[_TIMELINE_LENGTH:]:
        return None
    return None if await has_file(archive, wanted[_TIMELINE_LENGTH:]) else wanted


def _first(folder: SpareFolder) -> str | None:
    """The file with which the backup begins. PostgreSQL renames its label once it has found that."""
    for name in ("backup_label", "backup_label.old"):
        with suppress(OSError):
            found = _FIRST.search(folder.read(name))
            if found:
                return found[1]
    return None


def _after(name: str, segment_bytes: int) -> str:
    """The name of the next file."""
    a_part = 2**32 // segment_bytes
    number = int(name[8:16], 16) * a_part + int(name[16:24], 16) + 1
    return f"{name[:_TIMELINE_LENGTH]}{number // a_part:08X}{number % a_part:08X}"
