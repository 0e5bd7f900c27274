"""The session's clock: whole processes of both planes live in another time, by libfaketime.

The directory stays in ours: what counts is the time that the planes tell.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from server.tests import plain_http
from server.tests.end_to_end.control import ControlNode, new_session, running_control
from server.tests.end_to_end.session_ages import DAY, MINUTE
from server.tests.load import Node, running_node
from server.tests.programs import libfaketime
from server.tests.service import Service

pytestmark = pytest.mark.slow


@contextmanager
def time_shifted(by: timedelta) -> Iterator[None]:
    """Processes that are started in the block live so much later than we."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", libfaketime("libfaketimeMT.so.1"))
        patch.setenv("FAKETIME", f"+{int(by.total_seconds())}")
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        yield


@contextmanager
def planes_at(service: Service, later: timedelta) -> Iterator[tuple[Node, ControlNode]]:
    """A data-plane and a control-plane process that live so much later."""
    with time_shifted(later), running_node(service.directory_dsn) as data, running_control(
        service.directory_dsn
    ) as control:  # fmt: skip
        yield data, control


@pytest.fixture(scope="module")
def key(service: Service) -> str:
    """A key of an organization of its own, because what is done in the future is first in its audit log for long."""
    service.customers.add_organization("tomorrow")
    service.customers.add_database("main", "tomorrow")
    return service.new_key("read", org="tomorrow")


async def works(data: Node, session: dict[str, Any]) -> bool:
    async with data.client(session["token"]) as client:
        answer = await client.query("select 1 as one")
    assert answer.succeeded or (answer.status, answer.code) == (401, "unauthenticated")
    return answer.succeeded


def exchange(control: ControlNode, key: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    session: dict[str, Any] = plain_http.post(f"{control.url}/v1/session", headers=headers).json()["session"]
    return session


def refresh(control: ControlNode, session: dict[str, Any]) -> httpx.Response:
    headers = {"Authorization": f"Bearer {session['token']}"}
    return plain_http.post(f"{control.url}/v1/session/refresh", headers=headers)


async def test_a_session_works_at_23_59_and_can_be_refreshed_then_to_live_24_hours_longer(
    service: Service, key: str
) -> None:
    session = new_session(service, key=key)
    with planes_at(service, DAY - MINUTE) as (data, control):
        assert await works(data, session)
        assert refresh(control, session).status_code == 200
    with planes_at(service, 2 * DAY - MINUTE) as (data, _):
        assert await works(data, session)
    with planes_at(service, 2 * DAY + MINUTE) as (data, control):
        assert not await works(data, session)
        assert refresh(control, session).status_code == 401


async def test_an_unrefreshed_session_is_rejected_at_24_01_on_both_planes(service: Service, key: str) -> None:
    session = new_session(service, key=key)
    with planes_at(service, DAY + MINUTE) as (data, control):
        assert not await works(data, session)
        assert refresh(control, session).status_code == 401
        assert await works(data, exchange(control, key)), "one that is made there and then works"
