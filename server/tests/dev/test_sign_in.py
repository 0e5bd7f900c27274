"""The link that `dev` prints: it signs one in to the web console, once and for minutes."""

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from console.tests.programs import build, node_test
from plainsql_server.dev.local_http import LINK_LIFE_S
from server.tests.dev.running import Dev, Starter
from server.tests.service import Service

pytestmark = pytest.mark.slow

_LINK = re.compile(
    r"^  Or signed in +((https://localhost:\d+/console)#/sign-in\?token=(svc_s_[0-9A-Za-z]{38}))  # works once, ", re.M
)


@pytest.fixture(scope="module", autouse=True)
def console_built() -> None:
    build()


@pytest.fixture
def run(state: Path, start: Starter) -> Dev:
    found = start(state)
    found.wait_ready()
    return found


def test_the_link_has_a_session_of_minutes_which_can_not_be_extended(run: Dev) -> None:
    found = _LINK.search(run.output)
    assert found is not None, run.output
    _, address, token = found.groups()
    described = run.description()
    assert address == f"{described['control_url']}/console"
    trust = ssl.create_default_context(cafile=described["ca_file"])
    with httpx.Client(base_url=described["control_url"], verify=trust) as http:
        http.headers["Authorization"] = f"Bearer {token}"
        credential = http.get("/v1/organizations/current").json()["credential"]
        left = datetime.fromisoformat(credential["expires_at"]) - datetime.now(UTC)
        assert 0 < left.total_seconds() <= LINK_LIFE_S
        assert http.post("/v1/session/refresh").status_code == 403
        assert http.post("/v1/session", json={}).status_code == 403
    # Nothing but the screen has it.
    for path in run.directory.rglob("*"):
        if path.is_file() and "postgres" not in path.parts:
            assert token.encode() not in path.read_bytes(), path


@pytest.mark.browser
def test_the_printed_link_signs_one_in_once(run: Dev) -> None:
    found = _LINK.search(run.output)
    assert found is not None, run.output
    with httpx.Client(verify=False) as http:
        node_test("dev_link", Service(run.directory, run.description(), http), PLAINSQL_TEST_LINK=found[1])


def test_no_link_is_written_to_a_file_that_others_may_read(state: Path, start: Starter) -> None:
    run = start(state, output_mode=0o644)
    run.wait_ready()
    assert "svc_" not in run.output
    assert re.search(r"^  Web console +https://localhost:\d+/console  # sign in with the API key$", run.output, re.M)
