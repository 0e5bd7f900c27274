"""What tests of the fleet start from: two clusters for all of them, a directory with both as cells for each."""

from collections.abc import Iterator

import pytest

from server.tests.fleet.stage import Fleet
from server.tests.postgres import Postgres, running_postgres


@pytest.fixture(scope="session")
def clusters() -> Iterator[tuple[Postgres, Postgres]]:
    with running_postgres() as first, running_postgres() as second:
        yield first, second


@pytest.fixture
def fleet(clusters: tuple[Postgres, Postgres]) -> Fleet:
    return Fleet.made(*clusters)
