"""GET /openapi.json and GET /docs: the API reference of this plane, for programs and for people.

The document is generated once, at startup. The files of the page that shows it are in `pages/`. The page loads nothing
from other sites, and its Content-Security-Policy forbids that, too. Both have ETags, so an unchanged copy gets 304.
"""

from collections.abc import Sequence
from importlib.resources import files

import msgspec

from plainsql_server.http.app.contract import JSON_TYPE, Contract, Media
from plainsql_server.http.app.etags import KNOWN_VERSION
from plainsql_server.http.app.guides import guides_route
from plainsql_server.http.app.kept import Kept
from plainsql_server.http.app.openapi import Json, openapi_document
from plainsql_server.http.app.routes import AnswerAnyone, Route, open_route
from plainsql_server.http.app.web_pages import PAGE_HEADERS, guide_links
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response

_ABOUT = {
    "data": "SQL over plain HTTPS on PostgreSQL: queries, transactions and streams.",
    "control": "Sessions, API keys, databases, usage and the audit log.",
}
# By path: the file, its content type, and its purpose.
_PAGES = {
    "/docs": ("docs.html", "text/html", "Interactive API reference"),
    "/docs/docs.js": ("docs.js", "text/javascript", "Script of the API reference"),
    "/docs/docs.css": ("docs.css", "text/css", "Style sheet of the API reference"),
    "/docs/page.css": ("page.css", "text/css", "Style sheet of other pages"),
}


class ReferencePage:
    """The OpenAPI document of one plane, and the page that shows it."""

    def __init__(self, plane: str) -> None:
        self._plane = plane
        self._document = Kept(b"", JSON_TYPE.encode())

    def routes(self) -> list[Route]:
        described = _contract(Media(JSON_TYPE, "This document."))
        pages = [_page_route(path, *page) for path, page in _PAGES.items()]
        return [
            open_route("GET", "/openapi.json", "OpenAPI document of this plane", self.get, contract=described),
            *pages,
            guides_route(),
        ]

    def describe(self, routes: Sequence[Route]) -> Json:
        """Generates the document of these routes, serves it, and returns it."""
        document = openapi_document(self._plane, _ABOUT[self._plane], routes)
        self._document = Kept(msgspec.json.encode(document), JSON_TYPE.encode())
        return document

    async def get(self, request: Request) -> Response:
        return self._document.response(request)


def _contract(served: Media) -> Contract:
    return Contract(answers={200: served, 304: None}, errors=(), headers=(KNOWN_VERSION,))


def _page_route(path: str, file: str, content_type: str, purpose: str) -> Route:
    contract = _contract(Media(content_type, f"{purpose}."))
    return open_route("GET", path, purpose, _page(file, content_type), contract=contract)


def _page(file: str, content_type: str) -> AnswerAnyone:
    text = files("plainsql_server.http.app").joinpath("pages", file).read_text(encoding="utf-8")
    body = (text.replace("{guides}", guide_links(" · ")) if file.endswith(".html") else text).encode()
    page = Kept(body, f"{content_type}; charset=utf-8".encode(), PAGE_HEADERS)

    async def answer(request: Request) -> Response:
        return page.response(request)

    return answer
