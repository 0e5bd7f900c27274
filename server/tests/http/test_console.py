"""/console without a browser: headers, caching, compression, and a server that has no built files."""

import asyncio
import gzip
from pathlib import Path

import pytest

from plainsql_server.core.errors import AccessError
from plainsql_server.http.app.health import Urls
from plainsql_server.http.app.openapi import openapi_document
from plainsql_server.http.app.routes import RouteTable
from plainsql_server.http.control.console import ConsoleRoutes
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response

pytestmark = pytest.mark.unit

URLS = Urls("https://data.example:8400", "https://control.example", None)
SCRIPT = b"export const answer = 42;\n" * 40


@pytest.fixture
def console(tmp_path: Path) -> ConsoleRoutes:
    for name, content in (("index.html", b"<!doctype html>"), ("app-4f2a.js", SCRIPT), ("notes.txt", b"no")):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    return ConsoleRoutes(URLS, tmp_path)


def get(console: ConsoleRoutes, file: str | None = None, **headers: str) -> Response:
    sent = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    request = Request("GET", "/console", b"", sent)
    request.path_parameter = file or ""
    return asyncio.run(console.get_page(request) if file is None else console.get_file(request))


def header(response: Response, name: str) -> str | None:
    return next((value.decode() for each, value in response.headers if each == name.encode()), None)


def test_the_page_is_asked_for_again_and_its_files_are_kept(console: ConsoleRoutes) -> None:
    page, script = get(console), get(console, "app-4f2a.js")
    assert (page.status, page.body, page.content_type) == (200, b"<!doctype html>", b"text/html; charset=utf-8")
    assert header(page, "cache-control") == "no-cache"
    assert (script.body, script.content_type) == (SCRIPT, b"text/javascript; charset=utf-8")
    assert header(script, "cache-control") == "public, max-age=31536000, immutable"


def test_the_policy_allows_nothing_but_our_own_files_and_both_planes(console: ConsoleRoutes) -> None:
    for response in (get(console), get(console, "app-4f2a.js")):
        policy = header(response, "content-security-policy") or ""
        assert "unsafe" not in policy
        assert {part.strip() for part in policy.split(";")} == {
            "default-src 'none'", "script-src 'self'", "style-src 'self'", "worker-src 'self'", "img-src data:",
            "connect-src 'self' https://data.example:8400", "base-uri 'none'", "form-action 'none'",
            "frame-ancestors 'none'",
        }  # fmt: skip
        assert header(response, "referrer-policy") == "no-referrer"


def test_without_an_address_of_the_data_plane_the_page_connects_to_its_own_plane_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html.gz").write_bytes(gzip.compress(b"built"))
    page = get(ConsoleRoutes(Urls("", "https://control.example", None), tmp_path))
    assert " connect-src 'self'; " in (header(page, "content-security-policy") or "")


def test_the_page_is_the_same_with_a_slash_at_the_end(console: ConsoleRoutes) -> None:
    routes = RouteTable(console.routes())

    def page(path: str) -> Response:
        request = Request("GET", path, b"", {})

        async def answer() -> Response:
            return await routes.find(request).answer_anyone(request)

        return asyncio.run(answer())

    one, other = page("/console"), page("/console/")
    assert (other.status, other.body, other.headers) == (200, one.body, one.headers)
    paths = openapi_document("control", "", routes.routes)["paths"]
    ids = [operation["operationId"] for each in paths.values() for operation in each.values()]
    assert ids == ["get_console", "get_console_slash", "get_console_name"]


def test_a_file_that_an_upgrade_replaces_is_served_as_its_page_knows_it(console: ConsoleRoutes, tmp_path: Path) -> None:
    (tmp_path / "app-4f2a.js.gz").unlink()
    assert get(console, "app-4f2a.js").body == SCRIPT


def test_a_client_that_takes_gzip_gets_what_was_stored(console: ConsoleRoutes) -> None:
    for accepted in ("gzip, br", "br;q=1.0, GZIP;q=0.5"):
        response = get(console, "app-4f2a.js", accept_encoding=accepted)
        assert header(response, "content-encoding") == "gzip"
        assert header(response, "vary") == "accept-encoding"
        assert isinstance(response.body, bytes)
        assert gzip.decompress(response.body) == SCRIPT
    for refused in ("", "br", "gzip;q=0", "identity"):
        response = get(console, "app-4f2a.js", accept_encoding=refused)
        assert (header(response, "content-encoding"), response.body) == (None, SCRIPT)


def test_a_copy_that_is_current_is_not_sent_again(console: ConsoleRoutes) -> None:
    tag = header(get(console), "etag") or ""
    compressed = header(get(console, accept_encoding="gzip"), "etag") or ""
    assert tag != compressed
    again = get(console, if_none_match=tag)
    assert (again.status, again.body, header(again, "etag")) == (304, b"", tag)
    assert get(console, if_none_match=compressed).status == 200


@pytest.mark.parametrize("name", ["nothing.js", "../console.py", "notes.txt", "app-4f2a.js.gz", "%2e%2e/x.js"])
def test_nothing_but_the_built_files_is_served(console: ConsoleRoutes, name: str) -> None:
    with pytest.raises(AccessError) as raised:
        get(console, name)
    assert raised.value.code == "route_not_found"


def test_a_server_without_the_files_says_how_to_build_them(tmp_path: Path) -> None:
    console = ConsoleRoutes(URLS, tmp_path / "nowhere")
    page = get(console)
    assert page.status == 200
    assert b"make console" in bytes(page.body)  # type: ignore[arg-type]
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere/index.html.gz").write_bytes(gzip.compress(b"built"))
    assert get(console).body == b"built"
