"""Running a command against the directory: `with_directory(organizations.list_)`. Also the `--org` option."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from plainsql_server.directory.connection import Directory
from plainsql_server.settings import read_settings

T = TypeVar("T")

organization_option = click.option(
    "--org", "organization", required=True, metavar="NAME-OR-ID", help="Organization, by name or ID."
)


def with_directory(work: Callable[[Directory], Awaitable[T]]) -> T:
    """Open the directory, run `work` on it and return its result. Raises what `work` raises, and SettingsError."""
    settings = read_settings()

    async def run() -> T:
        async with Directory.open(settings.directory_dsn, max_connections=1) as directory:
            return await work(directory)

    return asyncio.run(run())
