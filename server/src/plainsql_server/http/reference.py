"""GET /openapi.json: what this plane takes and gives, for programs.

Owns the serving of the document, which is made once, at start.
"""

from collections.abc import Sequence

import msgspec

from plainsql_server.http.contract import JSON_TYPE, Contract, Media
from plainsql_server.http.openapi import Json, openapi_document
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response
from plainsql_server.http.routes import Route, open_route

_ABOUT = {
    "data": "SQL over plain HTTPS, on PostgreSQL: queries, transactions and streams.",
    "control": "Sessions, API keys, databases, usage and the audit log.",
}


class Reference:
    """The document of one plane."""

    def __init__(self, plane: str) -> None:
        self._plane = plane
        self._document = b""

    def routes(self) -> list[Route]:
        described = Contract(answers={200: Media(JSON_TYPE, "This document.")}, errors=())
        return [open_route("GET", "/openapi.json", "The OpenAPI document of this plane", self.get, contract=described)]

    def describe(self, routes: Sequence[Route]) -> Json:
        """The document of these routes, which is served from now on."""
        document = openapi_document(self._plane, _ABOUT[self._plane], routes)
        self._document = msgspec.json.encode(document)
        return document

    async def get(self, request: Request) -> Response:  # noqa: ARG002
        return Response(200, self._document)
