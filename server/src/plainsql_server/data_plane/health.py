"""Whether the data plane can do its work: its cells accept connections.

Owns that question. It asks as a role that may do nothing but connect, so that nothing can be learnt or
changed through it.
"""

import asyncio

from plainsql_server.core.errors import EngineError
from plainsql_server.directory import cells
from plainsql_server.directory.cells import CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.pool.health import check_cell


class Health:
    """The checks behind GET /health."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def directory(self) -> None:
        """Raises EngineError if the directory is away."""
        await self._directory.check()

    async def engine(self) -> None:
        """Raises EngineError if no cell accepts connections; with the code `degraded` if some do and some don't."""
        listed = await cells.list_(self._directory)
        # One that is down, as its operator knows, is not what a process is to be judged by.
        serving = [cell.conninfo for cell in listed if cell.state is not CellState.DOWN]
        failures = await asyncio.gather(*(_failure(conninfo) for conninfo in serving))
        away = [failure for failure in failures if failure is not None]
        if away and len(away) == len(serving):
            raise away[0]
        if away:
            # A balancer that took this process out would make it worse for those whose cell works.
            raise EngineError("degraded", f"{len(away)} of {len(serving)} cells do not accept connections.")


async def _failure(conninfo: str) -> EngineError | None:
    try:
        await check_cell(conninfo)
    except EngineError as error:
        return error
    return None
