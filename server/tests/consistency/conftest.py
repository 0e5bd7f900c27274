"""What tests of transactions that span databases start from."""

from collections.abc import Iterator

import pytest

from server.tests.consistency.two_cells import TwoCells, serving, two_cells
from server.tests.load import Node


@pytest.fixture(scope="module")
def two() -> Iterator[TwoCells]:
    """Two cells and a directory that the tests of a file may kill, with a control plane."""
    with two_cells() as running:
        running.make_tables()
        yield running


@pytest.fixture(scope="module")
def node(two: TwoCells) -> Iterator[Node]:
    """A data plane that can be made to die."""
    with serving(two) as running:
        yield running
