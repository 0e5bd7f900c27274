"""Two cells for tests of moves: clusters, a directory, an organization and a database that is on one of them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plainsql_server.control_plane import databases, keys, organizations
from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory
from server.tests.control_plane.cell_state import disagreements
from server.tests.customers import added_cell
from server.tests.operations.stage import Stage
from server.tests.postgres import Postgres

_OTHER = {"local": "second", "second": "local"}


@dataclass(frozen=True)
class Fleet:
    """An operator's world with two cells, `local` and `second`."""

    dsn: str
    clusters: Mapping[str, Postgres]
    key: str
    # Other tests' databases.
    known_leaks: dict[str, set[str]]

    @classmethod
    def made(cls, first: Postgres, second: Postgres) -> "Fleet":
        stage = Stage.made(first)
        key = asyncio.run(_add(stage.dsn, second.conninfo))
        clusters = {"local": first, "second": second}
        return cls(stage.dsn, clusters, key, _leaked(stage.dsn, clusters))

    @property
    def now(self) -> Stage:
        """The operator's shell, with the cell that the database is on now."""
        return Stage(self.clusters[self.cell()], self.dsn)

    def cell(self, database: str = "main") -> str:
        """Where the database is, as the directory says."""
        query = "select c.name from databases d join cells c on c.id = d.cell_id where d.name = %s"
        ((name,),) = Stage(self.clusters["local"], self.dsn).ask(query, database)
        return str(name)

    def other(self) -> str:
        return _OTHER[self.cell()]

    def move(self, *options: str, exit_code: int = 0) -> str:
        """Moves the database to the other cell; what the command said."""
        arguments = ("database", "move", "--org", "acme", "main", "--to", self.other(), *options)
        return self.now.run(*arguments, exit_code=exit_code).stderr

    def create(self, *names: str) -> None:
        """Creates databases."""
        asyncio.run(_create(self.dsn, names))

    def leaked(self) -> dict[str, set[str]]:
        """What is on a cell and not in the directory, by cell. Only while nobody works."""
        return _leaked(self.dsn, self.clusters)

    def now_states(self) -> list[str]:
        """The states of all databases that the directory knows, oldest first."""
        rows = Stage(self.clusters["local"], self.dsn).ask("select state from databases order by created_at")
        return [str(state) for (state,) in rows]

    def unfinished(self) -> bool:
        """Whether a move or the dropping of what it left is not done."""
        query = """
            select exists (select from moves where state in ('copying', 'stopping', 'undoing'))
                or exists (select from databases where state = 'deleting')
        """
        ((found,),) = Stage(self.clusters["local"], self.dsn).ask(query)
        return bool(found)


def _leaked(dsn: str, clusters: Mapping[str, Postgres]) -> dict[str, set[str]]:
    return {name: disagreements(dsn, each.dsn())["leaked"] for name, each in clusters.items()}


async def _create(dsn: str, names: Sequence[str]) -> None:
    async with Directory.open(dsn) as directory:
        organization = await organizations.get(directory, "acme")
        for name in names:
            await databases.create(directory, organization.id, name)


async def _add(dsn: str, conninfo: str) -> str:
    """Adds the second cell; a key of the organization's."""
    async with Directory.open(dsn) as directory:
        await added_cell(directory, "second", conninfo)
        organization = await organizations.get(directory, "acme")
        _, secret = await keys.create(directory, organization.id, "test", [Scope.WRITE])
    return secret.text
