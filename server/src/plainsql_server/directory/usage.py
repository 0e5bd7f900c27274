"""Usage in the directory, per database and day: the table `usage`. `directory/tally.py` does the counting."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from plainsql_server.directory.connection import Directory, DirectoryConnection


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """The usage of one database on one day."""

    day: date
    database_id: str
    database: str
    requests: int
    rows: int
    engine_us: int
    bytes: int


@dataclass(slots=True)
class UsageSum:
    """The usage of one database since it was last written."""

    organization_id: str
    database_id: str
    requests: int = 0
    rows: int = 0
    engine_us: int = 0
    bytes: int = 0


async def add(connection: DirectoryConnection, day: date, sums: Sequence[UsageSum]) -> None:
    """Adds usage to the stored sums of that day. What belongs to databases that are gone is left out."""
    statement = "SELECT note_usage(%s, %s, %s, %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
    columns = ("organization_id", "database_id", "requests", "rows", "engine_us", "bytes")
    await connection.execute(statement, (day, *([getattr(each, column) for each in sums] for column in columns)))


async def list_(
    directory: Directory, organization_id: str, first: date, last: date, *, limit: int, after: tuple[date, str] | None
) -> list[UsageRecord]:
    """An organization's usage from `first` to `last`, by day and database, starting after `after`."""
    statement = """
        SELECT u.day, u.database_id, d.name AS database, u.requests, u.rows, u.engine_us, u.bytes
        FROM usage u JOIN databases d ON d.id = u.database_id
        WHERE u.organization_id = %(organization_id)s AND u.day BETWEEN %(first)s AND %(last)s
          AND (%(day)s::date IS NULL OR (u.day, u.database_id) > (%(day)s, %(database_id)s))
        ORDER BY u.day, u.database_id LIMIT %(limit)s
    """
    day, database_id = after or (None, None)
    arguments = {
        "organization_id": organization_id, "first": first, "last": last, "limit": limit,
        "day": day, "database_id": database_id,
    }  # fmt: skip
    async with directory.connection() as connection:
        return [UsageRecord(**row) for row in await (await connection.execute(statement, arguments)).fetchall()]
