"""The mover is killed at every step: the database is whole in exactly one place, usable again soon, and can be moved.

`PLAINSQL_TEST_MOVE_CRASHES=1` is the full size: every point, not every twelfth, from the last one back.
"""

import asyncio
import signal
import subprocess
import sys
import time

import psycopg
import pytest

from plainsql_server.control_plane.finishing import Finisher
from plainsql_server.core.observation import Observation
from plainsql_server.directory.connection import Directory
from server.tests.fleet.dying import POINTS
from server.tests.fleet.stage import Fleet
from server.tests.load import size
from server.tests.processes import wait_for

EVERY = size("PLAINSQL_TEST_MOVE_CRASHES", 12)
_MOVED = ("after the switch is committed", "before what is left is dropped", "after what is left is dropped")


@pytest.mark.parametrize("point", POINTS[::-EVERY])
def test_a_database_whose_mover_died_is_whole_in_one_place_and_can_be_moved(fleet: Fleet, point: str) -> None:
    with fleet.now.owner() as owner:
        owner.execute("create table t (id int primary key, n int)")
        owner.execute("insert into t select g, g from generate_series(1, 1000) g")
    before = fleet.now.checksums()
    command = [sys.executable, "-m", "server.tests.fleet.dying", point, "second"]
    died = subprocess.run(command, env=fleet.now.environment(), capture_output=True, timeout=100, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    died_s = time.monotonic()
    finish(fleet)
    assert fleet.cell() == ("second" if point in _MOVED else "local")
    wait_for(lambda: can_be_written(fleet), 10, lambda: "it is not open")
    print(f"\n{point}: usable {time.monotonic() - died_s:.1f} s after the mover died")
    assert fleet.now.checksums() == before
    assert fleet.leaked() == fleet.known_leaks
    fleet.move()
    with fleet.now.owner() as owner:
        assert owner.execute("select count(*) from t where n > 0").fetchone() == (1000,)


def can_be_written(fleet: Fleet) -> bool:
    try:
        with fleet.now.owner() as owner:
            owner.execute("update t set n = n where id = 1")
    except psycopg.OperationalError:
        return False
    return True


def finish(fleet: Fleet) -> None:
    """What a control process does all the time, until there is nothing left to do."""
    failures: list[Observation] = []

    async def work() -> None:
        async with Directory.open(fleet.dsn) as directory, asyncio.timeout(60):
            looping = asyncio.create_task(Finisher(directory, failures.append).run())
            while fleet.unfinished():  # noqa: ASYNC110  # another task works
                await asyncio.sleep(0.05)
            looping.cancel()

    asyncio.run(work())
    assert not failures, failures
