"""Checks whether the data plane works: whether the directory and the cells accept connections.

The check connects as a role that may do nothing else, so it can neither read nor change anything.
"""

import asyncio

from plainsql_server.core.errors import EngineError
from plainsql_server.directory import cells
from plainsql_server.directory.cells import OUT_OF_SERVICE
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.pool.health import check_cell


class Health:
    """The checks behind GET /health."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def directory(self) -> None:
        """Raises EngineError if the directory is unavailable."""
        await self._directory.check()

    async def engine(self) -> None:
        """Raises EngineError if no cell accepts connections; with the code `degraded` if only some do."""
        listed = await cells.list_(self._directory)
        # Ignore cells that the operator has marked as down or lost. They say nothing about this process.
        serving = [cell.conninfo for cell in listed if cell.state not in OUT_OF_SERVICE]
        failures = await asyncio.gather(*(_failure(conninfo) for conninfo in serving))
        unavailable = [failure for failure in failures if failure is not None]
        if unavailable and len(unavailable) == len(serving):
            raise unavailable[0]
        if unavailable:
            # If a load balancer removed this process, it would also affect customers whose cell works.
            raise EngineError("degraded", f"{len(unavailable)} of {len(serving)} cells do not accept connections.")


async def _failure(conninfo: str) -> EngineError | None:
    try:
        await check_cell(conninfo)
    except EngineError as error:
        return error
    return None
