"""The cell that these tests take apart, and a node of the service that works on it."""

from collections.abc import Iterator

import pytest

from server.tests.failover.ha_cell import HaCell, running_ha_cell
from server.tests.failover.network import Network, can_make_networks, made_network
from server.tests.load import Node, running_node


@pytest.fixture(scope="module")
def network() -> Iterator[Network | None]:
    """The machines' network; None where this process may not make one. Then they are all on loopback."""
    if not can_make_networks():
        yield None
        return
    with made_network() as made:
        yield made


@pytest.fixture(scope="module")
def cell(network: Network | None) -> Iterator[HaCell]:
    if network is None:
        with running_ha_cell() as running:
            yield running
    else:
        with running_ha_cell(network.places, network.service_networks) as running:
            yield running


@pytest.fixture
def node(cell: HaCell) -> Iterator[Node]:
    cell.wait_until_whole()
    # The directory fails over with the cell, and takes as long.
    with running_node(cell.directory_dsn, cell_max_connections=24, directory_grace_ms=60_000) as running:
        yield running
