"""What goes wrong while clients work: the engine dies, a worker dies, connections are cut.

Owns the doing of it, and the waiting until it is over.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from server.tests.cell import Cell
from server.tests.load import Node
from server.tests.processes import children_of

# How long an engine that died stays away.
_DOWN_S = 0.3
_LIMIT_S = 120


async def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for something that other processes do, or other clients."""
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110  # other processes are watched
            await asyncio.sleep(0.01)


async def kill_engine(cell: Cell) -> None:
    """Every process of PostgreSQL ends at once, and it is started again."""
    cell.kill()
    await asyncio.sleep(_DOWN_S)
    await asyncio.to_thread(cell.start)


async def kill_worker(node: Node) -> None:
    """One of the processes that serve ends at once, and the others' parent starts another."""
    before = workers_of(node)
    os.kill(before[0], signal.SIGKILL)
    await wait_until(lambda: len(set(workers_of(node)) - {before[0]}) == len(before))


def workers_of(node: Node) -> list[int]:
    """The processes that serve, the oldest first."""
    return [pid for pid in children_of(node.process.pid) if b"spawn_main" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        # It ended while we looked.
        return b""
