"""What the tests of the fast lane share."""

from collections.abc import Iterator

import pytest

from server.tests.end_to_end.fast_lane import nodes_of_all_modes
from server.tests.load import Node
from server.tests.service import Service


@pytest.fixture(scope="module")
def nodes(service: Service) -> Iterator[dict[str, Node]]:
    """A node for each mode of the lane."""
    with nodes_of_all_modes(service) as running:
        yield running
