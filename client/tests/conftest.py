"""What tests of the client start from."""

from collections.abc import Iterator

import pytest

import plainsql
from server.tests.service import Service


@pytest.fixture
def db(service: Service) -> Iterator[plainsql.Client]:
    with plainsql.connect(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as client:
        yield client
