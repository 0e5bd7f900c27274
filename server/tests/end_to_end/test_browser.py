"""What a page of another origin may do, in headless Chromium: call the planes themselves, not the alias' redirects."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.tests.page import empty_page
from server.tests.service import Service, running_service

READERS = Path(__file__).resolve().parents[1] / "readers"
_LIMIT_S = 110


@pytest.fixture(scope="module")
def plain() -> Iterator[Service]:
    with running_service("--no-tls", tier="standard") as running:
        yield running


@pytest.fixture(scope="module")
def npm_packages() -> None:
    if not (READERS / "node_modules").is_dir():
        command = ["npm", "ci", "--silent", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=READERS, check=True, capture_output=True, timeout=_LIMIT_S)


def call(*calls: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """What the page saw of each call, and all that the browser wrote to its console."""
    with empty_page() as page_url:
        command = ["node", str(READERS / "calls.mjs"), page_url, json.dumps(calls)]
        printed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    assert printed.returncode == 0, printed.stderr
    answer = json.loads(printed.stdout)
    return answer["seen"], "\n".join(answer["told"])


def test_a_page_of_another_origin_calls_planes_directly_and_cannot_follow_the_aliass_redirect(
    plain: Service, npm_packages: None
) -> None:
    key = {"Authorization": f"Bearer {plain.api_key}"}
    alias_url = str(plain.dev["alias_url"])
    query = {
        "method": "POST",
        "headers": key | {"Content-Type": "application/json"},
        "body": '{"sql": "select 1 as n"}',
    }
    seen, told = call(
        {"url": f"{plain.data_url}/v1/query", "options": query},
        {"url": f"{alias_url}/v1/query", "options": query},
        {"url": f"{plain.control_url}/v1/organizations/current", "options": {"headers": key}},
        {"url": f"{alias_url}/v1/session", "options": {"method": "POST", "headers": key}},
        # Without a preflight the redirect itself is what the browser refuses.
        {"url": f"{alias_url}/v1/keys", "options": {}},
    )
    direct, through_alias, control, redirected, simple = seen
    for answer in (direct, through_alias):
        assert (answer["status"], answer["body"]["rows"]) == (200, [{"n": 1}])
        assert answer["headers"]["x-request-id"] == answer["body"]["request_id"]
        assert answer["headers"]["ratelimit-policy"] == '"org-standard";q=6000;w=60'
        assert answer["headers"]["ratelimit"].startswith('"org-standard";r=')
    assert "alias;dur=" not in direct["headers"]["server-timing"]
    assert "alias;dur=" in through_alias["headers"]["server-timing"]
    assert (control["status"], control["body"]["success"]) == (200, True)
    for refused in (redirected, simple):
        assert refused == {"error": "TypeError: Failed to fetch"}
    assert "has been blocked by CORS policy" in told
    assert "Redirect is not allowed for a preflight request" in told
