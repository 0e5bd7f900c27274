"""Changes to a database while it is moved: at the beginning of steps of the move, at their own pace."""

import asyncio
from collections.abc import Callable, Mapping

from plainsql_server.control_plane import databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.operations.move import Moved, move_database
from server.tests.fleet.stage import Fleet

ConcurrentChanges = Mapping[str, Callable[[], object]]


class ChangeInjector:
    """A progress bar that does something when a step begins."""

    def __init__(self, changes: ConcurrentChanges) -> None:
        self._changes = changes
        self.steps: list[str] = []

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:  # noqa: ARG002
        self.steps.append(label)
        if label in self._changes:
            self._changes[label]()

    def at(self, done: int) -> None:
        pass


def move_with_changes(fleet: Fleet, changes: ConcurrentChanges, to: str | None = None) -> tuple[Moved, list[str]]:
    """Moves the database of the fleet in this process; what that took, and the steps."""

    async def move(injector: ChangeInjector) -> Moved:
        async with Directory.open(fleet.dsn, max_connections=1) as directory:
            organization = await organizations.get(directory, "acme")
            database = await databases.get_named(directory, organization.id, "main")
            return await move_database(directory, database, to or fleet.other(), injector)

    injector = ChangeInjector(changes)
    return asyncio.run(move(injector)), injector.steps
