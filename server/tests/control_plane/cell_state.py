"""What is on a cell, beside what the directory says should be there.

Owns the comparison: a database or role that the directory does not know has leaked, and one that it counts on
and that is not there is lost.
"""

import psycopg

from plainsql_server.engine.admin.provisioning import backup_role_of

_ON_THE_CELL = """
    SELECT datname FROM pg_database WHERE datname ~ '^d_[0-9a-f]{24}$'
    UNION ALL SELECT rolname FROM pg_roles WHERE rolname ~ '^[bor]_[0-9a-f]{24}$'
"""
# What may be on the cell while it is being made or removed, and what must be while it can be used.
_KNOWN = """
    SELECT d.state, d.engine_name, r.engine_name AS role FROM databases d JOIN roles r ON r.database_id = d.id
    WHERE d.state = ANY(%s)
"""


async def yes() -> bool:
    """For provisioning without concurrent work."""
    return True


def disagreements(directory_dsn: str, cell_dsn: str) -> dict[str, set[str]]:
    """What leaked and what is lost; empty sets if directory and cell agree. Nothing else may use the cell."""
    with psycopg.connect(cell_dsn) as cell, psycopg.connect(directory_dsn) as directory:
        there = {name for (name,) in cell.execute(_ON_THE_CELL)}
        allowed = _names(directory, "creating", "failed", "ready", "suspended", "deleting")
        allowed |= {backup_role_of(name) for name in allowed if name.startswith("o_")}
        needed = _names(directory, "ready", "suspended")
    return {"leaked": there - allowed, "lost": needed - there}


def _names(directory: psycopg.Connection, *states: str) -> set[str]:
    rows = directory.execute(_KNOWN, (list(states),)).fetchall()
    return {name for _, database, role in rows for name in (database, role)}
