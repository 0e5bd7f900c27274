"""What goes wrong while clients work: the engine dies, a worker dies, a whole node dies.

Owns the doing of it, the waiting until it is over, and a workload in which it happens.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from server.tests.cell import Cell
from server.tests.consistency.workload import Workload
from server.tests.load import Node
from server.tests.processes import children_of, kill_with_children

# How long an engine that died stays away.
_DOWN_S = 0.3
_LIMIT_S = 120

Fault = Callable[[], Awaitable[None]]


async def wait_until(condition: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
    """Waits for something that other processes do, or other clients."""
    async with asyncio.timeout(limit_s):
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


async def kill_node(node: Node) -> None:
    """Every process of a data plane ends at once, and it is started again."""
    kill_with_children(node.process.pid)
    node.process.wait(_LIMIT_S)
    await asyncio.to_thread(node.start)


async def run_with_faults(workload: Workload, faults: Iterable[Fault], between: int, limit_s: float) -> None:
    """The workload, in which faults happen; so many transactions commit before each of them, and after the last."""
    enough = asyncio.Event()

    async def happen() -> None:
        for fault in faults:
            await committed_more(workload, between, limit_s)
            await fault()
        await committed_more(workload, between, limit_s)
        enough.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(workload.run(enough.is_set, limit_s))
        group.create_task(happen())


async def committed_more(workload: Workload, count: int, limit_s: float = _LIMIT_S) -> None:
    """Waits until so many more transactions are committed."""
    enough = workload.committed + count
    await wait_until(lambda: workload.committed >= enough, limit_s)


def workers_of(node: Node) -> list[int]:
    """The processes that serve, the oldest first."""
    commands = {pid: _command_line(pid) for pid in children_of(node.process.pid)}
    # One that is dead has none, and Python has a process for what workers that it spawns share.
    return [pid for pid, command in commands.items() if command and b"resource_tracker" not in command]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        # It ended while we looked.
        return b""
