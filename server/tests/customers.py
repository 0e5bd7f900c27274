"""Customers for tests: organizations with databases and keys, made in this process.

The operator's commands do the same in half a second each; `control_plane/test_cli.py` tests them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from plainsql_server.control_plane import cells, databases, keys, organizations
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.principal import Scope
from plainsql_server.directory import cells as stored_cells
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sealing.keyring import Keyring
from server.tests.postgres import SUPERUSER
from server.tests.sealing import keys_of

T = TypeVar("T")

# Clusters that are prepared as cells, by their conninfo. Preparing one again changes nothing and takes 0.15 s.
_prepared: set[str] = set()


def prepare_again() -> None:
    """Has each cluster prepared again, because a test has dropped or left something in one."""
    _prepared.clear()


async def added_cell(directory: Directory, name: str, conninfo: str, organization_id: str | None = None) -> CellRecord:
    """A cell in this directory, for tests of what comes after. The cluster is prepared only once."""
    if conninfo in _prepared:
        return await stored_cells.insert(
            directory, new_id(Kind.CELL), name, conninfo, SUPERUSER, organization_id=organization_id, by=OPERATOR
        )
    added = await cells.add(directory, name, conninfo, SUPERUSER, organization_id)
    _prepared.add(conninfo)
    return added


@dataclass(frozen=True)
class Customers:
    """Those of one directory."""

    directory_dsn: str

    def add_cell(self, name: str, conninfo: str) -> None:
        self._run(lambda directory: added_cell(directory, name, conninfo))

    def add_organization(self, name: str, tier: str = "dedicated") -> None:
        self._run(lambda directory: organizations.create(directory, name, tier))

    def add_database(self, name: str, organization: str = "dev") -> None:
        async def create(directory: Directory) -> None:
            owner = await organizations.get(directory, organization)
            await databases.create(directory, owner.id, name)

        self._run(create)

    def new_key(
        self, *scopes: str, organization: str = "dev", database: str | None = None, expires_at: str | None = None
    ) -> str:
        """The secret of a fresh key."""

        async def create(directory: Directory) -> str:
            owner = await organizations.get(directory, organization)
            until = datetime.fromisoformat(expires_at) if expires_at else None
            granted = [Scope(scope) for scope in scopes]
            _, secret = await keys.create(directory, owner.id, "test", granted, database=database, expires_at=until)
            return secret.text

        return self._run(create)

    def _run(self, work: Callable[[Directory], Awaitable[T]]) -> T:
        async def run() -> T:
            keyring = Keyring.of(keys_of(self.directory_dsn))
            async with Directory.open(self.directory_dsn, max_connections=1, secrets=keyring) as directory:
                return await work(directory)

        # In a thread, because some of the tests that call this are in an event loop already.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, run()).result()
