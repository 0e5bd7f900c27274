"""A call that waits for a rate limit, or for the service, says so, and waits no longer than it may."""

import asyncio
import logging
import os
import re
import time
from typing import Any

import pytest

import plainsql
from client.tests.scripted import answer, refusal, scripted
from client.tests.test_outcomes import DONE, KEY
from plainsql import dbapi
from server.tests import forks

_LIMITED = refusal(429, "rate_limited", retry_after_ms=30)
_MINUTE = refusal(429, "rate_limited", retry_after_ms=59_000)
INSERT = "insert into t values (1)"


def ask(url: str, **options: Any) -> Any:
    with plainsql.connect(url, KEY, **options) as db:
        return db.query(INSERT)


def ask_with_asyncio(url: str, **options: Any) -> Any:
    async def work() -> plainsql.Result:
        async with plainsql.connect_async(url, KEY, **options) as db:
            return await db.query(INSERT)

    return asyncio.run(work())


@pytest.mark.parametrize("ask", [ask, ask_with_asyncio])
def test_a_wait_is_logged(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    with scripted(_LIMITED, _LIMITED, answer(200, DONE)) as (url, requests):
        assert ask(url).affected_rows == 1
    assert len(requests) == 3
    assert caplog.record_tuples == [("plainsql", logging.WARNING, "Rate limit reached, retrying in 1 s.")] * 2


@pytest.mark.parametrize("ask", [ask, ask_with_asyncio])
def test_a_wait_for_a_service_that_is_stopped_is_logged_once_and_as_long_as_it_says(
    ask: Any, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    with pytest.raises(plainsql.NetworkError):
        ask("http://127.0.0.1:1", timeout_s=1)
    assert time.monotonic() - began >= 1
    (message,) = caplog.messages
    assert re.fullmatch(r"Can't connect to http://127.0.0.1:1: .+ Retrying for up to 1 s\.", message)


def test_a_wait_for_a_service_behind_a_proxy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    gone = answer(502, "<h1>Bad gateway</h1>", Retry_After="0")
    with scripted(gone, gone, answer(200, DONE)) as (url, _):
        assert ask(url, timeout_s=20).affected_rows == 1
    assert caplog.messages == ["A proxy responded with status 502. Retrying for up to 20 s."]


@pytest.mark.parametrize("ask", [ask, ask_with_asyncio])
def test_a_wait_can_be_bounded(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    with scripted(_MINUTE) as (url, requests), pytest.raises(plainsql.LimitError) as caught:
        ask(url, rate_limit_wait_s=5, timeout_s=3_600)
    assert (len(requests), caught.value.outcome, caplog.records) == (1, "not_executed", [])
    with scripted(_LIMITED) as (url, requests), pytest.raises(plainsql.LimitError):
        ask(url, rate_limit_wait_s=0)
    assert len(requests) == 1


def test_the_bound_is_for_all_waits_of_a_call_together() -> None:
    with scripted(_LIMITED) as (url, requests), pytest.raises(plainsql.LimitError):
        ask(url, rate_limit_wait_s=0.1)
    assert 2 <= len(requests) <= 4


def test_the_db_api_has_the_bound_too() -> None:
    with scripted(_MINUTE) as (url, _):
        connection = dbapi.connect(url, KEY, rate_limit_wait_s=1)
        with pytest.raises(dbapi.OperationalError, match="rate_limited"):
            connection.cursor().execute("select 1")
        connection.close()


def test_the_command_reports_the_wait_and_its_bound_is_an_option() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
    with scripted(_LIMITED, answer(200, DONE)) as (url, _):
        arguments = ["--url", url, "--key", KEY, "sql", INSERT]
        done = forks.run(arguments, environment, program=forks.CLIENT)
    assert (done.returncode, done.stderr.splitlines()[1]) == (0, "Rate limit reached, retrying in 1 s.")
    with scripted(_MINUTE) as (url, _):
        arguments = ["--url", url, "--key", KEY, "--rate-limit-wait", "2", "sql", INSERT]
        done = forks.run(arguments, environment, program=forks.CLIENT)
    assert (done.returncode, "It is rate_limited." in done.stderr) == (5, True)
