"""What tests of the fleet start from: a directory with both shared clusters as cells for each."""

from collections.abc import Iterator

import pytest

from server.tests.fleet.stage import Fleet
from server.tests.postgres import Postgres


@pytest.fixture(scope="session")
def clusters(postgres: Postgres, second_postgres: Postgres) -> tuple[Postgres, Postgres]:
    return postgres, second_postgres


@pytest.fixture
def fleet(clusters: tuple[Postgres, Postgres]) -> Iterator[Fleet]:
    first, second = clusters
    with first.swept(), second.swept():
        yield Fleet.made(first, second)
