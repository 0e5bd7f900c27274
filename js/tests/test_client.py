"""The client in Node, against the service over TLS: one file of Node's tests per topic."""

import pytest

from js.tests.programs import node_test
from server.tests.service import Service

TOPICS = ["queries", "values", "streams", "sessions", "kysely", "drizzle"]


@pytest.mark.parametrize("topic", TOPICS)
def test_the_client_does_in_node_what_it_says(service: Service, js_package: None, topic: str) -> None:
    node_test(topic, service)
