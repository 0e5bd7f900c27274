"""A data plane that dies where a test tells it to: `python -m server.tests.consistency.crashing data`.

Causes faults for which the service itself has no switch. Each worker process gets its
application here, so that what is changed holds in all of them.

`PLAINSQL_TEST_CRASH_FILE` names a file. A process that reaches the step written in it removes it, and dies by SIGKILL
at once; or, after `HOLD` and a space, stands still until the file beside it, which ends in `.held`, is removed.
For `PLAINSQL_TEST_HOLD_S` a record is its holder's. With `PLAINSQL_TEST_OVERLAP` transactions that span databases do
not wait for each other.
"""

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from plainsql_server import assembly
from plainsql_server.data_plane import spanning_lock
from plainsql_server.data_plane.spanning import Spanning, SpanningStep
from plainsql_server.directory import spanning
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.spanning import NewRecord, SpanningState


def die_at_step(step: SpanningStep) -> None:
    path = Path(os.environ["PLAINSQL_TEST_CRASH_FILE"])
    held = path.with_suffix(".held")
    try:
        wanted = path.read_text()
        if wanted.removeprefix("HOLD ") != step.name:
            return
        # Of two processes that read it, one gets it.
        path.rename(held)
    except FileNotFoundError:
        return
    if wanted == step.name:
        os.kill(os.getpid(), signal.SIGKILL)
    while held.exists():
        # Nothing else happens in this process meanwhile, as if it had been stopped.
        time.sleep(0.01)


async def enter_at_once(directory: Directory, new: NewRecord, hold_s: float) -> SpanningState:
    """Takes the lock even if another transaction has it. The test has dropped the index that keeps the rule."""
    statement = """
        INSERT INTO spanning_transactions (id, organization_id, gid, database_ids, state, held_until)
        VALUES (%s, %s, %s, %s, 'open', now() + %s * interval '1 s')
    """
    async with directory.connection() as connection:
        await connection.execute(
            statement, (new.id, new.organization_id, new.gid, list(new.database_ids), hold_s)
        )  # fmt: skip
    return SpanningState.OPEN


@asynccontextmanager
async def no_queue(*_: object) -> AsyncIterator[None]:
    yield


# What uvicorn's workers ask for.
data_application = assembly.data_application

setattr(assembly, "Spanning", partial(Spanning, on_step=die_at_step))  # noqa: B010  # mypy knows it as a class
spanning_lock.HOLD_S = float(os.environ["PLAINSQL_TEST_HOLD_S"])
spanning_lock._KEEP_EVERY_S = spanning_lock.HOLD_S / 4
if os.environ.get("PLAINSQL_TEST_OVERLAP"):
    spanning.enter = enter_at_once
    setattr(spanning_lock.SpanningLocks, "_queue", no_queue)  # noqa: B010  # mypy knows it as a method
