import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import plainsql
from server.tests.service import Service, running_service


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """One service for all tests of the client: they use names of their own and leave nothing in the others' way.

    PLAINSQL_TEST_DEV names the `.plainsql` folder of a service that runs already (tier dedicated), to save its start.
    """
    running = os.environ.get("PLAINSQL_TEST_DEV")
    if running is None:
        with running_service() as started:
            yield started
        return
    dev = json.loads((Path(running) / "dev.json").read_text())
    with httpx.Client(verify=ssl.create_default_context(cafile=dev["ca_file"]), timeout=60) as http:
        yield Service(Path(running), dev, http)


@pytest.fixture
def db(service: Service) -> Iterator[plainsql.Client]:
    with plainsql.connect(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as client:
        yield client
