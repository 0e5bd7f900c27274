"""/v1/session: a token that stands for an API key for a while, so that browsers need not keep the key.

Owns the shapes. The rules are `control_plane/sessions.py`'s.
"""

from typing import Any

import msgspec

from plainsql_server.control_plane import sessions
from plainsql_server.core.actor import Actor
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sessions import SessionRecord
from plainsql_server.http.control import answer, no_content, read_body
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response


class SessionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/session. The key has been read from it before, where it stands here."""

    scopes: list[Scope] | None = None
    database: str | None = None
    api_key: str | None = None


_session_body = msgspec.json.Decoder(SessionBody)


class SessionRoutes:
    """The handlers of the three session routes."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def post(self, request: Request, principal: Principal) -> Response:
        body = await read_body(request, principal, _session_body)
        by = Actor.of(principal, request.id)
        session, token = await sessions.create(self._directory, principal, by, body.scopes, body.database)
        return answer(request, 201, session={**_shown(session), "token": token.text})

    async def refresh(self, request: Request, principal: Principal) -> Response:
        session = await sessions.refresh(self._directory, principal, Actor.of(principal, request.id))
        return answer(request, 200, session=_shown(session))

    async def delete(self, request: Request, principal: Principal) -> Response:
        await sessions.end(self._directory, principal, Actor.of(principal, request.id))
        return no_content()


def _shown(session: SessionRecord) -> dict[str, Any]:
    return {
        "id": session.id,
        "created_at": session.created_at,
        "expires_at": session.expires_at,
        "scopes": sorted(session.scopes),
        "database": session.database_name,
        "key_id": session.key_id,
    }
