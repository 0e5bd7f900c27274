"""What a page of another origin may do, in headless Chromium: call the planes themselves, not the alias' redirects."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from server.tests.page import READERS, empty_page
from server.tests.service import Service, running_service

pytestmark = pytest.mark.browser

_LIMIT_S = 110


@pytest.fixture(scope="module")
def plain_http() -> Iterator[Service]:
    with running_service("--no-tls", tier="standard") as running:
        yield running


def call(*calls: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """What the page saw of each call, and all that the browser wrote to its console."""
    with empty_page() as page_url:
        command = ["node", str(READERS / "calls.mjs"), page_url, json.dumps(calls)]
        printed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    assert printed.returncode == 0, printed.stderr
    answer = json.loads(printed.stdout)
    return answer["seen"], "\n".join(answer["console"])


@dataclass(frozen=True)
class PageLoad:
    """What one page of another origin saw, by the name of the call."""

    seen: dict[str, dict[str, Any]]
    console: str


@pytest.fixture(scope="module")
def page_load(plain_http: Service, npm_packages: None) -> PageLoad:
    key = {"Authorization": f"Bearer {plain_http.api_key}"}
    alias_url = str(plain_http.dev["alias_url"])
    query = {
        "method": "POST",
        "headers": key | {"Content-Type": "application/json"},
        "body": '{"sql": "select 1 as n"}',
    }
    calls: dict[str, dict[str, Any]] = {
        "query": {"url": f"{plain_http.data_url}/v1/query", "options": query},
        "query by alias": {"url": f"{alias_url}/v1/query", "options": query},
        # Without a preflight the redirect itself is what the browser refuses.
        "keys by alias, no preflight": {"url": f"{alias_url}/v1/keys", "options": {}},
    }
    for name, method in (("session", "POST"), ("databases", "GET"), ("keys", "GET")):
        options = {"method": method, "headers": key}
        calls[name] = {"url": f"{plain_http.control_url}/v1/{name}", "options": options}
        calls[f"{name} by alias"] = {"url": f"{alias_url}/v1/{name}", "options": options}
    seen, console = call(*calls.values())
    return PageLoad(dict(zip(calls, seen, strict=True)), console)


def test_a_page_of_another_origin_queries_the_data_plane_and_the_alias(page_load: PageLoad) -> None:
    direct, through_alias = page_load.seen["query"], page_load.seen["query by alias"]
    for answer in (direct, through_alias):
        assert (answer["status"], answer["body"]["rows"]) == (200, [{"n": 1}])
        assert answer["headers"]["x-request-id"] == answer["body"]["request_id"]
        assert answer["headers"]["ratelimit-policy"] == '"org-standard";q=6000;w=60'
        assert answer["headers"]["ratelimit"].startswith('"org-standard";r=')
    assert "alias;dur=" not in direct["headers"]["server-timing"]
    assert "alias;dur=" in through_alias["headers"]["server-timing"]


@pytest.mark.parametrize(("route", "status"), [("session", 201), ("databases", 200), ("keys", 200)])
def test_5_5_browser_clients_call_control_url_directly_for_control_plane_routes_sessions_databases_keys(
    page_load: PageLoad, route: str, status: int
) -> None:
    answer = page_load.seen[route]
    assert (answer["status"], answer["body"]["success"]) == (status, True)


@pytest.mark.parametrize("route", ["session", "databases", "keys"])
def test_5_5_called_through_alias_url_the_alias_answers_with_a_redirect_which_browsers_reject_for_cross_origin_reasons(
    page_load: PageLoad, route: str
) -> None:
    assert page_load.seen[f"{route} by alias"] == {"error": "TypeError: Failed to fetch"}
    assert page_load.seen["keys by alias, no preflight"] == {"error": "TypeError: Failed to fetch"}
    assert "has been blocked by CORS policy" in page_load.console
    assert "Redirect is not allowed for a preflight request" in page_load.console
