"""How a command reaches the directory: by the settings, for as long as the command runs.

Owns that and the option that names an organization.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from plainsql_server.directory.connection import Directory
from plainsql_server.settings import read_settings

T = TypeVar("T")

organization_option = click.option(
    "--org", "organization", required=True, metavar="NAME-OR-ID", help="The organization, by name or id."
)


def with_directory(work: Callable[[Directory], Awaitable[T]]) -> T:
    """What `work` returns, given the open directory. Raises what `work` raises, and SettingsError."""
    settings = read_settings()

    async def run() -> T:
        async with Directory.open(settings.directory_dsn, max_connections=1) as directory:
            return await work(directory)

    return asyncio.run(run())
