"""Running a command against the directory: `with_directory(organizations.list_)`. Also the options that name things."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
from psycopg import errors

from plainsql_server.cli.output import remark
from plainsql_server.control_plane import databases, organizations
from plainsql_server.core.actor import OPERATOR, name_operator
from plainsql_server.core.errors import EngineError, ServiceError
from plainsql_server.core.names import DATABASE_ID
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.sealing.keyring import Keyring
from plainsql_server.settings import operators_name, read_settings

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


def with_directory(
    work: Callable[[Directory], Awaitable[T]], *, reads: str | None = None, max_connections: int = 1
) -> T:
    """Open the directory, run `work` on it and return its result. Raises what `work` raises, and SettingsError.

    Changes are in the audit log with the operator's name. `reads` names a command that only reads, such as `top`, so
    that it is noted there, too.
    """
    settings = read_settings()
    name_operator(operators_name(settings))

    async def run() -> T:
        keyring = Keyring.of(settings.secrets_keys, refuses_unsealed=settings.refuses_unsealed_secrets)
        async with Directory.open(settings.directory_dsn, max_connections, secrets=keyring) as directory:
            if reads is not None:
                await note_reading(directory, f"operator.{reads}")
            return await work(directory)

    return asyncio.run(run())


async def note_reading(
    directory: Directory, action: str, organization_id: str | None = None, target_id: str = "directory"
) -> None:
    """Note in the audit log what the operator reads. If it can't be written to, say so: reading must still work then.

    Raises EngineError if the directory is unavailable.
    """
    try:
        await audit.note_reading(directory, OPERATOR, action, organization_id, target_id)
    except ServiceError as error:
        if isinstance(error, EngineError) and not isinstance(error.__cause__, errors.InsufficientPrivilege):
            raise
        why = " ".join((error.internal_context or error.message).split())
        remark(f"This command is missing in the audit log, which can't be written to: {why}")
