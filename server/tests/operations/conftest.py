"""What tests of the operator's view start from: a directory and a cell for each."""

from collections.abc import Iterator

import pytest

from server.tests.operations.stage import Stage
from server.tests.postgres import Postgres


@pytest.fixture
def stage(postgres: Postgres) -> Iterator[Stage]:
    with postgres.swept():
        yield Stage.made(postgres)
