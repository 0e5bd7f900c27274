"""A mover that dies: `python -m server.tests.fleet.dying POINT CELL` moves the database, and is killed at that point.

Owns the list of points. A point is a function of ours, before which or after which the process ends as by kill -9.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from plainsql_server.control_plane import databases, drafts, moves, organizations
from plainsql_server.directory import drafts as stored_drafts
from plainsql_server.directory import moves as stored_moves
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin import change_apply, fencing, provisioning
from plainsql_server.operations import move as operation
from server.tests import forks
from server.tests.fleet.concurrent_changes import ChangeInjector
from server.tests.fleet.stage import Fleet

# Where, by module and function; and the number of the call, since some are called for other ends before.
_PLACES: dict[str, tuple[Any, str, int]] = {
    "the copy is made": (provisioning, "create_database", 1),
    "the move is stored": (stored_moves, "insert", 1),
    "the definitions are copied": (operation, "_pour", 1),
    "the rows are copied": (operation, "finish_schema", 1),
    "the copy follows": (operation, "follow", 1),
    "the stop is stored": (stored_moves, "stop", 1),
    "the database is closed": (fencing, "allow_connections", 1),
    "connections are ended": (fencing, "end_connections", 1),
    "the last changes are brought over": (operation, "follow", 2),
    "sequences are set": (change_apply, "set_sequences", 1),
    "triggers act again": (change_apply, "set_triggers_enabled", 2),
    "places are exchanged": (stored_drafts, "exchange", 1),
    "the switch is committed": (stored_moves, "finish", 1),
    "what is left is dropped": (provisioning, "drop_database", 1),
}
POINTS = [f"{when} {place}" for place in _PLACES for when in ("before", "after")]
# Moves that nobody carries any more are undone soon, so that tests need not wait.
ALIVE_S = 1.0


def die_at(point: str, fleet: Fleet) -> None:
    """Has a mover to the second cell die at that point."""
    died = forks.run([point, "second"], fleet.now.environment(), program="server.tests.fleet.dying", timeout=100)
    assert died.returncode == -signal.SIGKILL, died.stderr


def main(point: str, to: str) -> None:
    when, _, place = point.partition(" ")
    _die(when, *_PLACES[place])
    moves.ALIVE_S, moves._KEEP_EVERY_S, drafts._CLAIM_S = ALIVE_S, ALIVE_S / 5, ALIVE_S
    asyncio.run(_move(to))


async def _move(to: str) -> None:
    async with Directory.open(os.environ["PLAINSQL_DIRECTORY_DSN"], max_connections=1) as directory:
        organization = await organizations.get(directory, "acme")
        database = await databases.get_named(directory, organization.id, "main")
        await operation.move_database(directory, database, to, ChangeInjector({}))


def _die(when: str, module: Any, name: str, number: int) -> None:
    real = getattr(module, name)
    calls = 0

    async def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await real(*arguments, **options)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, name, dying)


if __name__ == "__main__":
    main(*sys.argv[1:])
