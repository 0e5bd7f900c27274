"""How the processes divide a cell's connections."""

from fractions import Fraction

import pytest

from plainsql_server.core.share import WHOLE, Renewed, Share
from plainsql_server.engine.pool.share import FIRST_CONNECTIONS, OTHER_CONNECTIONS, connections_of, parts_of

pytestmark = pytest.mark.unit

ALLOWED = 1_200 + OTHER_CONNECTIONS


def test_a_process_has_its_share_of_what_the_service_leaves() -> None:
    assert [connections_of(ALLOWED, Share.fixed(Fraction(1, number))) for number in (1, 2, 3, 16)] == [
        1_200, 600, 400, 75,
    ]  # fmt: skip


def test_a_process_that_has_no_share_yet_has_some_of_what_the_shares_leave() -> None:
    assert connections_of(ALLOWED, Share()) == FIRST_CONNECTIONS
    assert 2 * FIRST_CONNECTIONS <= OTHER_CONNECTIONS


def test_a_small_cell_leaves_each_process_some() -> None:
    share = Share()
    share.accept(Renewed(WHOLE // 8, WHOLE // 8, 8), 0)
    assert connections_of(100, share) == 8


@pytest.mark.parametrize("connections", [31, 399, 400, 1_200])
def test_open_connections_are_parts_of_the_whole(connections: int) -> None:
    parts = parts_of(ALLOWED, connections, 2)
    assert parts * 1_200 // WHOLE == connections
    assert (parts == WHOLE) == (connections == 1_200)


@pytest.mark.parametrize(
    ("allowed", "processes", "connections"), [(ALLOWED, 2, 30), (62, 1, 8), (100, 8, 8), (20, 3, 8)]
)
def test_connections_that_each_process_may_have_are_no_part_of_a_share(
    allowed: int, processes: int, connections: int
) -> None:
    """Otherwise a small cell, with fewer than that, would keep the whole share from others."""
    assert parts_of(allowed, connections, processes) == 0
    assert parts_of(allowed, connections + 1, processes) > 0


def test_more_connections_than_there_are_in_a_small_cell_are_the_whole() -> None:
    assert parts_of(62, 31, 1) == WHOLE
