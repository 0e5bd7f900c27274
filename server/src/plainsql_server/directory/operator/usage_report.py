"""The usage of all organizations, for billing and reports: the table `usage` with names."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date

from plainsql_server.directory.connection import Directory

_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """The usage of one database on one day."""

    day: date
    organization_id: str
    organization: str
    tier: str
    database_id: str
    database: str
    requests: int
    rows: int
    engine_us: int
    bytes: int


async def usage_of_all(
    directory: Directory, first: date, last: date, organization_id: str | None = None
) -> AsyncIterator[list[ReportedUsage]]:
    """The usage from `first` to `last`, by day, organization and database, in batches."""
    statement = """
        SELECT u.day, u.organization_id, o.name AS organization, o.tier, u.database_id, d.name AS database,
               u.requests, u.rows, u.engine_us, u.bytes
        FROM usage u JOIN organizations o ON o.id = u.organization_id JOIN databases d ON d.id = u.database_id
        WHERE u.day BETWEEN %(first)s AND %(last)s AND (%(id)s::text IS NULL OR u.organization_id = %(id)s)
          AND (u.day, u.organization_id, u.database_id) > (%(day)s, %(organization)s, %(database)s)
        ORDER BY u.day, u.organization_id, u.database_id LIMIT %(limit)s
    """
    arguments = {
        "first": first, "last": last, "id": organization_id, "day": first, "organization": "", "database": "",
        "limit": _AT_ONCE,
    }  # fmt: skip
    while True:
        async with directory.connection() as connection:
            rows = await (await connection.execute(statement, arguments)).fetchall()
        if not rows:
            return
        yield [ReportedUsage(**row) for row in rows]
        end = rows[-1]
        arguments |= {"day": end["day"], "organization": end["organization_id"], "database": end["database_id"]}
