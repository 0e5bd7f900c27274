"""The client in Node, against the service over TLS: one file of Node's tests per topic."""

import pytest

from js.tests.programs import node_test
from server.tests.load import STALL_S
from server.tests.service import Service

TOPICS = ["queries", "values", "streams", "faults", "sessions", "kysely", "drizzle"]


@pytest.mark.parametrize("topic", TOPICS)
def test_the_client_does_in_node_what_it_says(service: Service, js_package: None, topic: str) -> None:
    # A second is the bar for what is cancelled.
    node_test(topic, service, CANCELLED_WITHIN_MS=str(1_000 + STALL_S * 1_000))
