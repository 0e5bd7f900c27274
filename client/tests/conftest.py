from collections.abc import Iterator

import pytest

import plainsql
from server.tests.service import Service, running_service


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """One service for all tests of the client: they use names of their own and leave nothing in the others' way."""
    with running_service() as running:
        yield running


@pytest.fixture
def db(service: Service) -> Iterator[plainsql.Client]:
    with plainsql.connect(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as client:
        yield client
