"""What the client costs beside a bare HTTP library that sends the same requests, in turns in one run."""

import json
import os
import ssl
import time
from collections.abc import Callable

import pytest
import urllib3

import plainsql
from server.tests.load import IS_FULL
from server.tests.service import Service

pytestmark = pytest.mark.timing

ROUNDS = int(os.environ.get("PLAINSQL_TEST_OVERHEAD_ROUNDS", "5"))
REQUESTS = 40


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_client_reaches_most_of_a_bare_library_s_rate(service: Service, db: plainsql.Client) -> None:
    bare = urllib3.PoolManager(ssl_context=ssl.create_default_context(cafile=service.dev["ca_file"]))
    url, headers = f"{service.data_url}/v1/query", {"Authorization": f"Bearer {service.api_key}"}
    body = {"sql": "select 1", "row_format": "array", "read_only": True}

    def ask_bare() -> None:
        answer = bare.request("POST", url, body=json.dumps(body).encode(), headers=headers)
        assert json.loads(answer.data)["rows"] == [[1]]

    def ask_client() -> None:
        assert db.query("select 1").value() == 1

    rates = [(_rate(ask_client), _rate(ask_bare)) for _ in range(ROUNDS)]
    bare.clear()
    # The best rounds, because a stall of the machine can halve the rate of any one.
    ratio = max(ours for ours, _ in rates) / max(theirs for _, theirs in rates)
    print(f"the client's best rate is {ratio:.2f} of bare urllib3's, each round: {rates}")
    assert ratio >= (0.8 if IS_FULL else 0.5)


def _rate(ask: Callable[[], None]) -> float:
    ask()
    began = time.perf_counter()
    for _ in range(REQUESTS):
        ask()
    return REQUESTS / (time.perf_counter() - began)
