"""The reported outcome when answers are lost, late or not the service's: never more than is known."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import plainsql
from client.tests.scripted import answer, drip, hang_up, refusal, scripted
from server.tests.load import STALL_S

KEY = "svc_k_scripted"
COMMITTED = {"success": True, "request": {"id": "x", "outcome": "committed"}, "request_id": "req_scripted"}
NOT_DONE = {"success": True, "request": {"id": "x", "outcome": "not_executed"}, "request_id": "req_scripted"}
DONE = {
    "success": True, "columns": [], "types": [], "rows": [], "row_count": 0, "truncated": False, "affected_rows": 1,
    "command": "INSERT", "timings": {"total_us": 1, "exec_us": 1}, "request_id": "req_scripted",
}  # fmt: skip


def blocking(url: str, timeout_s: float) -> Any:
    with plainsql.connect(url, KEY, timeout_s=timeout_s) as db:
        return db.query("insert into t values (1)")


def with_asyncio(url: str, timeout_s: float) -> Any:
    async def work() -> plainsql.Result:
        async with plainsql.connect_async(url, KEY, timeout_s=timeout_s) as db:
            return await db.query("insert into t values (1)")

    return asyncio.run(work())


@pytest.fixture(params=[blocking, with_asyncio])
def insert(request: pytest.FixtureRequest) -> Callable[[str, float], Any]:
    return request.param  # type: ignore[no-any-return]  # one of the two above


@pytest.mark.parametrize("refused", [(503, "overloaded"), (429, "rate_limited"), (401, "unauthenticated")])
def test_a_rejection_after_a_lost_answer_does_not_report_not_executed(
    insert: Callable[[str, float], Any], refused: tuple[int, str]
) -> None:
    with scripted(hang_up, refusal(*refused)) as (url, _), pytest.raises(plainsql.NetworkError) as caught:
        insert(url, 0.3)
    assert caught.value.outcome == "unknown"
    assert caught.value.idempotency_key is not None
    assert f"It is {refused[1]}." in str(caught.value)


def test_a_rejection_after_a_lost_answer_reports_committed_if_the_service_knows_it() -> None:
    steps = (hang_up, refusal(401, "unauthenticated"), answer(200, COMMITTED))
    with scripted(*steps) as (url, requests), pytest.raises(plainsql.NetworkError) as caught:
        blocking(url, 0.3)
    assert caught.value.outcome == "committed"
    assert requests[-1].startswith(f"GET /v1/requests/{caught.value.idempotency_key} ")


def test_a_rejection_without_a_lost_answer_reports_not_executed(insert: Callable[[str, float], Any]) -> None:
    with scripted(refusal(503, "overloaded")) as (url, _), pytest.raises(plainsql.LimitError) as caught:
        insert(url, 0.3)
    assert caught.value.outcome == "not_executed"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxys_own_failure_is_retried_and_not_taken_for_an_answer(
    insert: Callable[[str, float], Any], status: int
) -> None:
    failure = answer(status, "<h1>Bad luck</h1>", Retry_After="Wed, 21 Oct 2026 07:28:00 GMT")
    with scripted(failure, answer(200, DONE)) as (url, requests):
        assert insert(url, 5).affected_rows == 1
    assert len(requests) == 2
    with scripted(failure, failure, answer(200, NOT_DONE)) as (url, _), pytest.raises(plainsql.NetworkError) as caught:
        insert(url, 1.2)
    assert caught.value.outcome == "unknown"


def test_a_call_times_out_even_if_bytes_keep_arriving(insert: Callable[[str, float], Any]) -> None:
    # They would keep arriving for ever.
    with (
        scripted(drip, answer(200, NOT_DONE)) as (url, _),
        pytest.raises(plainsql.NetworkError, match="didn't respond before the timeout"),
    ):
        insert(url, 0.2)


def test_an_untrusted_certificate_and_an_unknown_host_fail_at_once(
    service: Any, insert: Callable[[str, float], Any]
) -> None:
    for url, message in (
        (service.data_url, "isn't trusted"),
        ("https://nowhere.invalid", "Host nowhere.invalid not found"),
    ):
        began = time.monotonic()
        with pytest.raises(plainsql.NetworkError, match=message) as caught:
            insert(url, 120)
        assert caught.value.outcome == "not_executed"
        assert time.monotonic() - began < 10 + STALL_S


def test_errors_before_sending_have_our_own_messages() -> None:
    with pytest.raises(plainsql.SettingsError, match="Can't use the CA file"):
        plainsql.connect("https://localhost", KEY, ca_file="/nowhere.pem")
    with pytest.raises(plainsql.SettingsError, match="The key is invalid"):
        plainsql.connect("https://localhost", "svc_k_ä")
    with plainsql.connect("http://127.0.0.1:1", KEY) as db:
        with pytest.raises(ValueError, match="visible ASCII"):
            db.query("insert into t values (1)", idempotency_key="a b")
        with pytest.raises(ValueError, match="Invalid database name"):
            db.tables(database="ä")


def test_a_health_check_of_an_unavailable_service_fails_at_once() -> None:
    began = time.monotonic()
    with plainsql.connect("http://127.0.0.1:1", KEY) as db, pytest.raises(plainsql.NetworkError):
        db.health()
    assert time.monotonic() - began < 5 + STALL_S


def test_a_reset_whose_response_is_lost_is_not_sent_again() -> None:
    with scripted(hang_up) as (url, requests), plainsql.connect(url, KEY) as db:
        with pytest.raises(plainsql.NetworkError) as caught:
            db.reset_database("app")
        assert (caught.value.outcome, len(requests)) == ("unknown", 1)


def test_a_session_that_may_have_ended_is_not_ended_again() -> None:
    with (
        scripted(hang_up) as (url, requests),
        plainsql.connect(url, KEY, control_url=url) as db,
        pytest.raises(plainsql.NetworkError) as caught,
    ):
        db.end_session()
    assert (caught.value.outcome, requests) == ("unknown", ["DELETE /v1/session HTTP/1.1"])
