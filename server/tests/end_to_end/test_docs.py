"""The reference that both planes serve, in headless Chromium: every route is there, and examples can be sent."""

import json
import os
import subprocess
from typing import Any

import pytest

from server.tests.page import READERS
from server.tests.service import Service

pytestmark = pytest.mark.browser

# Where screenshots go, for who wants to look at it.
SCREENSHOTS = os.environ.get("PLAINSQL_TEST_SCREENSHOTS", "")
_LIMIT_S = 100


def page_load(url: str, key: str, *tries: tuple[str, str, str]) -> dict[str, Any]:
    """What a visitor sees who sends these: (a name for it, the operation, the example)."""
    command = ["node", str(READERS / "docs.mjs"), f"{url}/docs", key, SCREENSHOTS, json.dumps(tries)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    assert printed.returncode == 0, printed.stderr
    seen: dict[str, Any] = json.loads(printed.stdout)
    return seen


def routes(service: Service, url: str) -> set[str]:
    listed = service.http.get(f"{url}/").json()["routes"]
    return {f"{route['method']} {route['path']}" for route in listed}


def test_the_docs_page_sends_examples_and_shows_the_answers(plain_service: Service, npm_packages: None) -> None:
    seen = page_load(
        plain_service.data_url, plain_service.api_key,
        ("row", "post_v1_query", "With parameters"), ("stream", "post_v1_query", "A stream"),
        ("text", "post_query", ""), ("transaction", "post_v1_transaction", "An expectation"),
        ("health", "get_health", ""),
    )  # fmt: skip
    assert {" ".join(section.split()) for section in seen["sections"]} == routes(plain_service, plain_service.data_url)
    answers = seen["answers"]
    assert answers["row"].startswith("200\n")
    assert '"sum": 3' in answers["row"]
    assert "event: row" in answers["stream"]
    assert "event: done" in answers["stream"]
    assert '"success": true' in answers["text"]
    assert '"attempts": 1' in answers["transaction"]
    assert '"status": "ok"' in answers["health"]
    check_alone(seen, plain_service.data_url)


def test_the_docs_page_without_a_key_shows_the_control_planes_401(plain_service: Service, npm_packages: None) -> None:
    seen = page_load(plain_service.control_url, "", ("keys", "get_v1_keys", ""), ("made", "post_v1_keys", ""))
    assert {" ".join(section.split()) for section in seen["sections"]} == routes(
        plain_service, plain_service.control_url
    )
    for answer in seen["answers"].values():
        assert answer.startswith("401\n")
        assert '"code": "unauthenticated"' in answer
    refused = [line for line in seen["console"] if "401" in line]
    check_alone(
        seen | {"console": [line for line in seen["console"] if line not in refused]}, plain_service.control_url
    )


def check_alone(seen: dict[str, Any], url: str) -> None:
    """Nothing came from elsewhere, and a script that is not ours does not run."""
    assert [origin for origin in seen["asked"] if origin != "null"] == [url]
    assert seen["inline"] is False
    (complaint,) = seen["console"]
    assert "Content Security Policy" in complaint


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css"])
def test_a_matching_etag_of_the_reference_is_304(plain_service: Service, path: str) -> None:
    for url in (plain_service.data_url, plain_service.control_url):
        first = plain_service.http.get(url + path)
        assert first.headers["cache-control"] == "no-cache"
        for sent in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
            again = plain_service.http.get(url + path, headers={"If-None-Match": sent})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        changed = plain_service.http.get(url + path, headers={"If-None-Match": '"other"'})
        assert (changed.status_code, changed.content) == (200, first.content)
    assert (
        plain_service.http.get(plain_service.data_url + "/openapi.json").headers["etag"]
        != plain_service.http.get(plain_service.control_url + "/openapi.json").headers["etag"]
    )


def test_the_page_and_its_files_have_a_strict_policy_and_no_word_of_other_hosts(plain_service: Service) -> None:
    for path in ("/docs", "/docs/docs.js", "/docs/docs.css"):
        answer = plain_service.http.get(plain_service.data_url + path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in answer.text
        assert "https://" not in answer.text
        assert len(answer.content) < 32_000
    assert plain_service.http.get(f"{plain_service.data_url}/").json()["docs"] == f"{plain_service.data_url}/docs"
