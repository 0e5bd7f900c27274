"""The lane's request ids are like those of `core/ids.py`."""

import time

import pytest

from plainsql_server.core.ids import is_request_id, new_request_id
from plainsql_server.extension_modules import COMPILED

if COMPILED:
    from plainsql_server.lane.request_ids import RequestIds

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

# More than the random bytes of one batch are enough for.
COUNT = 1000


def test_ids_are_new_and_look_like_all_others() -> None:
    ids = RequestIds()
    made = [ids.next() for _ in range(COUNT)]
    assert len({each[16:] for each in made}) == COUNT
    assert all(is_request_id(each) and len(each) == len(new_request_id()) for each in made)
    assert all(set(each[4:]) <= set(b"0123456789abcdef") for each in made)
    # Every position is random.
    assert all(len({each[at] for each in made}) == 16 for at in range(16, 36))


def test_ids_begin_with_the_time() -> None:
    before_ms = time.time_ns() // 1_000_000
    made_ms = int(RequestIds().next()[4:16], 16)
    assert before_ms <= made_ms <= time.time_ns() // 1_000_000
