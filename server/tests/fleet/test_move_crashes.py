"""The mover is killed at every step: the database is whole in exactly one place, usable again soon, and can be moved.

`PLAINSQL_TEST_MOVE_CRASHES=1` is the full size: every point, not every twelfth, from the last one back.
"""

import time

import psycopg
import pytest

from server.tests.fleet.dying import POINTS, die_at
from server.tests.fleet.finishing import finish
from server.tests.fleet.stage import Fleet
from server.tests.load import size
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

EVERY = size("PLAINSQL_TEST_MOVE_CRASHES", 12)
_MOVED = ("after the switch is committed", "before what is left is dropped", "after what is left is dropped")


@pytest.mark.parametrize("point", POINTS[::-EVERY])
def test_after_a_crashed_move_the_database_is_complete_in_one_cell_and_can_be_moved(fleet: Fleet, point: str) -> None:
    with fleet.now.owner() as owner:
        owner.execute("create table t (id int primary key, n int)")
        owner.execute("insert into t select g, g from generate_series(1, 1000) g")
    before = fleet.now.checksums()
    die_at(point, fleet)
    died_s = time.monotonic()
    finish(fleet)
    assert fleet.cell() == ("second" if point in _MOVED else "local")
    wait_for(lambda: can_be_written(fleet), 60, lambda: "it is not open")
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
