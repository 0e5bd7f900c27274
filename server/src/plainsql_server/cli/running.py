"""Running a command against the directory: `with_directory(organizations.list_)`. Also the options that name things."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from plainsql_server.control_plane import databases, organizations
from plainsql_server.core.names import DATABASE_ID
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.settings import read_settings

T = TypeVar("T")

organization_option = click.option(
    "--org", "organization", required=True, metavar="NAME-OR-ID", help="Organization, by name or ID."
)


owner_option = click.option(
    "--org", "organization", metavar="NAME-OR-ID", help="Organization that owns the database; not needed with an ID."
)
database_argument = click.argument("database", metavar="NAME-OR-ID")


async def chosen_database(directory: Directory, organization: str | None, database: str) -> DatabaseRecord:
    """The database with that ID, or with that name in an organization. Raises AccessError if there is none."""
    owner = None if organization is None else (await organizations.get(directory, organization)).id
    if DATABASE_ID.match(database):
        return await databases.get(directory, database, owner)
    if owner is None:
        raise click.UsageError("Give the database's ID (db_…), or its name and --org.")
    return await databases.get_named(directory, owner, database)


def with_directory(work: Callable[[Directory], Awaitable[T]]) -> T:
    """Open the directory, run `work` on it and return its result. Raises what `work` raises, and SettingsError."""
    settings = read_settings()

    async def run() -> T:
        async with Directory.open(settings.directory_dsn, max_connections=1) as directory:
            return await work(directory)

    return asyncio.run(run())
