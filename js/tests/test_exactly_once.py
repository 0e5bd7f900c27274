"""Writes of the JavaScript client through a proxy that cuts connections: each is done exactly once.

The first attempt of each write is cut at one place: after so many bytes of its request and of its answer. In the gate
that is every 29th place; PLAINSQL_TEST_JS_CUT_EVERY=1 is every place, which are more than 1,000 for each kind of write.
"""

import json
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest

from client.tests.cutting_proxy import CommitCutter, CuttingProxy, Proxy, running
from js.tests.programs import node
from plainsql_server.dev.ports import free_port
from server.tests.load import size
from server.tests.service import Service

pytestmark = pytest.mark.chaos

EVERY = size("PLAINSQL_TEST_JS_CUT_EVERY", 29)
RANDOM_WRITES = size("PLAINSQL_TEST_JS_CUT_WRITES", 30)
KINDS = ["query", "transaction", "function"]


def write(
    proxy: Proxy, service: Service, kind: str, *, first: int = 0, count: int = 1, timeout_ms: int = 60_000
) -> dict[str, Any]:
    """What the client says of these writes."""
    url = f"http://127.0.0.1:{proxy.port}"
    arguments = (kind, str(first), str(count), str(timeout_ms))
    reported: dict[str, Any] = json.loads(
        node("tests/exactly_once.mjs", *arguments, PLAINSQL_URL=url, PLAINSQL_KEY=service.api_key)
    )
    assert len(reported["outcomes"]) == count
    return reported


def effects(service: Service) -> dict[int, int]:
    rows = service.query("select n, count(*) from js_effects group by n", max_rows=100_000)["rows"]
    return {row["n"]: row["count"] for row in rows}


def final_outcome(service: Service, key: str) -> str:
    """What became of the write with this key, once it does not run any more."""
    deadline = time.monotonic() + 30
    while (outcome := service.call("GET", f"/v1/requests/{key}").json()["request"]["outcome"]) == "in_progress":
        assert time.monotonic() < deadline, "the write still runs"
    return str(outcome)


def port_of(service: Service) -> int:
    port = urlsplit(service.data_url).port
    assert port is not None
    return port


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_has_one_effect_wherever_its_request_or_answer_is_cut(
    plain_service: Service, js_package: None, kind: str
) -> None:
    plain_service.query("create table js_effects (n int)")
    try:
        with running(CommitCutter(port_of(plain_service))) as proxy:
            assert write(proxy, plain_service, kind, first=100_000)["outcomes"] == ["committed"]
            request_bytes, answer_bytes = proxy.lengths
            places = range(0, request_bytes + answer_bytes, EVERY)
            proxy.places.extend(places)
            reported = write(proxy, plain_service, kind, count=len(places))
        print(f"{kind}: {request_bytes} + {answer_bytes} bytes, {len(places)} places: {dict(proxy.cuts)}")
        assert sum(proxy.cuts.values()) == len(places)
        assert set(reported["outcomes"]) == {"committed"}
        assert effects(plain_service) == dict.fromkeys([*range(len(places)), 100_000], 1)
    finally:
        plain_service.query("drop table js_effects")


def test_a_write_has_one_effect_however_often_it_is_cut(plain_service: Service, js_package: None) -> None:
    plain_service.query("create table js_effects (n int)")
    try:
        with running(CuttingProxy(port_of(plain_service), share=0.4, seed=9)) as proxy:
            outcomes: Counter[str] = Counter()
            for index, kind in enumerate(KINDS):
                reported = write(proxy, plain_service, kind, first=index * RANDOM_WRITES, count=RANDOM_WRITES)
                outcomes.update(reported["outcomes"])
        assert min(proxy.cuts.values()) > 0, proxy.cuts
        assert outcomes == {"committed": 3 * RANDOM_WRITES}
        assert effects(plain_service) == dict.fromkeys(range(3 * RANDOM_WRITES), 1)
    finally:
        plain_service.query("drop table js_effects")


def test_a_write_whose_answers_are_all_lost_is_reported_as_it_is(plain_service: Service, js_package: None) -> None:
    plain_service.query("create table js_effects (n int)")
    try:
        # The service gets each attempt whole, and the client no answer; but it may ask what became of the write.
        with running(CommitCutter(port_of(plain_service), is_relentless=True)) as proxy:
            reported = write(proxy, plain_service, "query", timeout_ms=2_000)
        (reported_outcome,) = reported["outcomes"]
        assert reported_outcome in ("network_error committed", "network_error unknown")
        # The last attempt may still run. What the service says once it doesn't is what is in the database.
        outcome = final_outcome(plain_service, reported["keys"][0])
        assert effects(plain_service) == ({0: 1} if outcome == "committed" else {})
        if reported_outcome == "network_error committed":
            assert outcome == "committed"
    finally:
        plain_service.query("drop table js_effects")


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_has_committed_has_one_effect_although_no_attempt_is_answered(
    plain_service: Service, js_package: None, kind: str
) -> None:
    plain_service.query("create table js_effects (n int)")
    try:
        # Each attempt is cut when the service has answered it, so a second one without the first one's key would write.
        with running(CommitCutter(port_of(plain_service), is_relentless=True, loses_answers=True)) as proxy:
            reported = write(proxy, plain_service, kind, timeout_ms=2_000)
        assert proxy.cuts["after send"] > 1
        assert reported["outcomes"] == ["network_error committed"]
        assert effects(plain_service) == {0: 1}
    finally:
        plain_service.query("drop table js_effects")


def test_without_any_answer_the_outcome_is_unknown(plain_service: Service, js_package: None) -> None:
    with running(CuttingProxy(port_of(plain_service), share=1.0, seed=9)) as proxy:
        reported = write(proxy, plain_service, "transaction", timeout_ms=500)
    assert reported["outcomes"] == ["network_error unknown"]
    assert reported["keys"][0]


def test_without_a_service_nothing_was_executed(js_package: None) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    printed = node("tests/exactly_once.mjs", "query", "0", "1", "300", PLAINSQL_URL=url, PLAINSQL_KEY="svc_k_none")
    assert json.loads(printed)["outcomes"] == ["network_error not_executed"]
