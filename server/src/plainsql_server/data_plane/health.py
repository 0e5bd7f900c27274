"""Whether the data plane can do its work: every active cell accepts connections.

Owns that question. It asks as a role that may do nothing but connect, so that nothing can be learnt or
changed through it.
"""

import asyncio

from plainsql_server.directory import cells
from plainsql_server.directory.cells import CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.health import check_cell


class Health:
    """The checks behind GET /health."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def directory(self) -> None:
        """Raises EngineError if the directory is away."""
        await self._directory.check()

    async def engine(self) -> None:
        """Raises EngineError if a cell that should work does not accept connections."""
        listed = await cells.list_(self._directory)
        active = [cell.conninfo for cell in listed if cell.state is CellState.ACTIVE]
        await asyncio.gather(*(check_cell(conninfo) for conninfo in active))
