from collections.abc import Iterator

import pytest

from server.tests.service import Service, running_service


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """One service for all tests of this folder: they use names of their own and leave nothing in the others' way."""
    with running_service() as running:
        yield running
