"""What PostgreSQL said about damaged pages while a spare cluster replayed the WAL.

    damaged_files(log, {16862})  # {"base/16862/16900": 3}

Recovery ignores that the WAL changes pages that are missing or empty, because most databases of a spare cluster are.
Of the databases that are restored, none may be. A page that is emptied or dropped later is not reported.
"""

import re
from collections import Counter
from collections.abc import Set
from pathlib import Path

_REPORTED = re.compile(rb"WARNING:  page (\d+) of relation (\S+) (?:does not exist|is uninitialized)$")
# Those of all databases.
_SHARED = "global"


def damaged_files(log: Path, oids: Set[int]) -> dict[str, int]:
    """How many pages of these databases and of shared catalogs are damaged, by the file's path in the data folder."""
    folders = {str(oid) for oid in oids} | {_SHARED}
    pages: set[tuple[bytes, bytes]] = set()
    with log.open("rb") as lines:
        for line in lines:
            found = _REPORTED.search(line.rstrip())
            # base/OID/…, or pg_tblspc/TABLESPACE/VERSION/OID/…
            if found is not None and found[2].decode().split("/")[-2] in folders:
                pages.add((found[2], found[1]))
    return dict(Counter(file.decode() for file, _ in sorted(pages)))
