"""The reference that both planes serve, in headless Chromium: every route is there, and examples can be sent."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from plainsql_server.http.app.web_pages import GUIDES
from server.tests.page import READERS
from server.tests.service import Service

pytestmark = pytest.mark.browser

# Where screenshots go, for who wants to look at it.
SCREENSHOTS = os.environ.get("PLAINSQL_TEST_SCREENSHOTS", "")
_LIMIT_S = 100


def page_load(url: str, key: str, *tries: tuple[str, str, str]) -> dict[str, Any]:
    """What a visitor sees who sends these: (a name for it, the operation, the example or, for `post_query`, SQL)."""
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
        ("text", "post_query", ""), ("ddl", "post_query", "create table if not exists noted (id int)"),
        ("write", "post_query", "insert into noted values (1), (2)"),
        ("transaction", "post_v1_transaction", "An expectation"), ("health", "get_health", ""),
    )  # fmt: skip
    assert {" ".join(section.split()) for section in seen["sections"]} == routes(plain_service, plain_service.data_url)
    answers = seen["answers"]
    assert answers["row"].startswith("200\n")
    assert '"sum": 3' in answers["row"]
    assert "event: row" in answers["stream"]
    assert "event: done" in answers["stream"]
    assert '"success": true' in answers["text"]
    assert '"command": "CREATE TABLE"' in answers["ddl"]
    assert '"affected_rows": 2' in answers["write"]
    assert '"attempts": 1' in answers["transaction"]
    assert '"status": "ok"' in answers["health"]
    assert seen["tables"] == {
        "row": [["SELECT, 1 row", ["sum"], ["3"]]], "text": [["SELECT, 1 row", ["at"], seen["tables"]["text"][0][2]]],
        "ddl": [["CREATE TABLE, 0 rows", []]], "write": [["INSERT, 2 rows", []]],
        "transaction": [["SELECT, 1 row", ["seven"], ["7"]]], "stream": [], "health": [],
    }  # fmt: skip
    check_programs(seen["programs"]["row"], plain_service)
    assert seen["phone"]["title"] < 100
    assert seen["phone"]["routes"] > 800
    assert seen["phone"]["icon"].startswith("data:image/png;base64,")
    check_alone(seen, plain_service.data_url)


def test_the_docs_page_of_the_control_plane_sends_examples(plain_service: Service, npm_packages: None) -> None:
    url = plain_service.control_url
    seen = page_load(url, plain_service.api_key, ("databases", "get_v1_databases", ""), ("health", "get_health", ""))
    assert {" ".join(section.split()) for section in seen["sections"]} == routes(plain_service, url)
    assert seen["answers"]["databases"].startswith("200\n")
    assert '"name": "main"' in seen["answers"]["databases"]
    assert seen["tables"] == {"databases": [], "health": []}
    check_alone(seen, url)


def check_programs(programs: dict[str, str], service: Service) -> None:
    """The request is shown for other languages, and the programs run as they are."""
    environment = {**os.environ, "PLAINSQL_API_KEY": service.api_key}
    commands = {
        "curl": ["bash", "-c"], "Python": [sys.executable, "-c"], "JavaScript": ["node", "--input-type=module", "-e"],
    }  # fmt: skip
    for language, command in commands.items():
        program = programs[language]
        assert service.api_key not in program
        ran = subprocess.run([*command, program], capture_output=True, text=True, env=environment, check=True)
        assert json.loads(ran.stdout)["rows"] == [{"sum": 3}]


def check_alone(seen: dict[str, Any], url: str) -> None:
    """Nothing came from elsewhere, and a script that is not ours does not run."""
    assert [origin for origin in seen["asked"] if origin != "null"] == [url]
    assert seen["inline"] is False
    (complaint,) = seen["console"]
    assert "Content Security Policy" in complaint
    assert seen["guide"]["title"] == "Client guide: Python and the plainsql command"
    assert seen["guide"]["height"] > 2_000


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css", "/docs/page.css"])
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
    listed = plain_service.http.get(f"{plain_service.data_url}/docs").text
    assert [name for name in GUIDES if f'href="/guides/{name}"' not in listed] == []
    assert plain_service.http.get(f"{plain_service.data_url}/").json()["docs"] == f"{plain_service.data_url}/docs"


def test_guides_are_pages_whose_links_lead_somewhere(plain_service: Service) -> None:
    pages = {}
    for name in GUIDES:
        answer = plain_service.http.get(f"{plain_service.control_url}/guides/{name}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "unsafe" not in answer.headers["content-security-policy"]
        pages[f"/guides/{name}"] = answer
        again = plain_service.http.get(str(answer.url), headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path, page in pages.items():
        names = re.findall(r' id="([^"]*)"', page.text)
        assert len(names) == len(set(names))
        for link in re.findall(r'href="([^"]*)"', page.text):
            to, _, heading = link.partition("#")
            if heading and (to or path) in pages:
                assert f' id="{heading}"' in pages[to or path].text, link
            assert to in ("", "/docs", "/docs/page.css", *pages) or to.startswith(("https://", "data:")), link
    unknown = plain_service.http.get(f"{plain_service.data_url}/guides/..%2Fclient")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "route_not_found")


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_a_browser_gets_a_start_page_and_programs_get_json(plain_service: Service) -> None:
    for url in (plain_service.data_url, plain_service.control_url, str(plain_service.dev["alias_url"])):
        page = plain_service.http.get(f"{url}/", headers=BROWSER)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "PlainSQL" in page.text
        assert 'href="/docs"' in page.text
        assert plain_service.control_url in page.text
        assert "unsafe" not in page.headers["content-security-policy"]
        for accept in ("*/*", "application/json", "application/json, text/html;q=0.5"):
            banner = plain_service.http.get(f"{url}/", headers={"Accept": accept})
            assert banner.json()["service"] == "plainsql"
            assert "accept" in banner.headers["vary"].lower()


def test_a_browser_gets_a_page_for_a_path_that_does_not_exist(plain_service: Service) -> None:
    for url in (plain_service.data_url, plain_service.control_url):
        page = plain_service.http.get(f"{url}/<script>alert(1)</script>", headers=BROWSER)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "<script>" not in page.text
        assert 'href="/"' in page.text
        assert page.headers["x-request-id"] in page.text
        assert plain_service.http.get(f"{url}/nowhere").json()["error"]["code"] == "route_not_found"
    wrong_plane = plain_service.http.get(f"{plain_service.data_url}/v1/keys", headers=BROWSER)
    assert f"{plain_service.control_url}/v1/keys" in wrong_plane.text
    posted = plain_service.http.post(f"{plain_service.data_url}/nowhere", headers=BROWSER)
    assert posted.json()["error"]["code"] == "route_not_found"
