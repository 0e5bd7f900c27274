"""What a control process does all the time, done until there is nothing left to do."""

import asyncio

from plainsql_server.control_plane.finishing import Finisher
from plainsql_server.core.observation import Observation
from plainsql_server.directory.connection import Directory
from server.tests.fleet.stage import Fleet


def finish(fleet: Fleet) -> None:
    """Finishes what others left, and fails if that meets an error."""
    failures: list[Observation] = []

    async def work() -> None:
        async with Directory.open(fleet.dsn) as directory, asyncio.timeout(60):
            looping = asyncio.create_task(Finisher(directory, failures.append).run())
            while fleet.unfinished():  # noqa: ASYNC110  # another task works
                await asyncio.sleep(0.05)
            looping.cancel()

    asyncio.run(work())
    assert not failures, failures
