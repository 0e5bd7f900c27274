"""How the processes divide a cell's connections while their number changes."""

import pytest

from plainsql_server.engine.pool.share import FIRST_CONNECTIONS, OTHER_CONNECTIONS, Share

pytestmark = pytest.mark.unit

ALLOWED = 1_200 + OTHER_CONNECTIONS


def shares(share: Share, *counts: int) -> list[int]:
    """The share after each renewal."""
    found = []
    for count in counts:
        share.count(count)
        found.append(share.of(ALLOWED))
    return found


def test_a_process_alone_has_all_as_soon_as_it_is_sure() -> None:
    assert Share(2).of(ALLOWED) == FIRST_CONNECTIONS
    assert shares(Share(2), 1, 1) == [FIRST_CONNECTIONS, 1_200]


def test_a_list_without_the_others_for_a_short_time_changes_nothing() -> None:
    assert shares(Share(2), 2, 2, 2, 1, 1, 2, 2)[2:] == [600] * 5


def test_a_process_that_joins_others_has_its_share_when_they_have_given_it_up() -> None:
    assert shares(Share(2), 2, 2, 2) == [FIRST_CONNECTIONS, FIRST_CONNECTIONS, 600]


def test_a_process_takes_less_at_once_and_more_when_those_that_left_have_closed_theirs() -> None:
    share = Share(2)
    assert shares(share, 2, 2, 2, 4, 4) == [FIRST_CONNECTIONS, FIRST_CONNECTIONS, 600, 300, 300]
    assert shares(share, 2, 3, 2, 2, 2) == [300, 300, 300, 300, 600]


def test_processes_never_have_more_together_than_the_cell_allows() -> None:
    """Two run, two join, two leave, each with its renewals at another time."""
    running = [Share(2) for _ in range(4)]
    for share in running[:2]:
        shares(share, 2, 2, 2)
    for _ in range(3):
        for share in running[2:]:
            share.count(4)
        # In the worst case, the others renew last.
        joined = sum(share.of(ALLOWED) for share in running[2:])
        assert joined <= 2 * FIRST_CONNECTIONS or all(share.of(ALLOWED) <= 300 for share in running[:2])
        for share in running[:2]:
            share.count(4)
        assert sum(share.of(ALLOWED) for share in running) <= 1_200


def test_a_small_cell_leaves_each_process_some() -> None:
    share = Share(8)
    shares(share, 8, 8, 8)
    assert share.of(100) == 8
