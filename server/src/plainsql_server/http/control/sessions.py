"""/v1/session: models and handlers for sessions: short-lived tokens, so browsers need not store an API key.

The rules are in `control_plane/sessions.py`.
"""

from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.control_plane import sessions
from plainsql_server.core.actor import Actor
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sessions import SessionRecord
from plainsql_server.http.app.fields import DatabaseName
from plainsql_server.http.control.answering import decoded_body, no_content
from plainsql_server.http.server.answers import RequestId, Success, Time
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response


class SessionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/session."""

    # `api_key` is declared here only for the model: authentication has already read it.
    scopes: Annotated[
        Annotated[list[Scope], Meta(extra_json_schema={"minItems": 1})] | None,
        Meta(description="A subset of the key's scopes. Default: all of them."),
    ] = None
    database: Annotated[
        DatabaseName | None, Meta(description="Restrict the session to this database, by its name or id.")
    ] = None
    expires_in_seconds: Annotated[
        Annotated[int, Meta(ge=60, le=86_400)],
        Meta(description="When it expires, at most 24 hours from now. With less than 24 hours, it can't be extended."),
    ] = 86_400
    api_key: Annotated[
        str | None, Meta(description="The API key, if you don't send it in the Authorization header.")
    ] = None


class Session(msgspec.Struct, kw_only=True):
    """A session, without its token."""

    id: Annotated[str, Meta(description="Identifier of the session.")]
    created_at: Annotated[Time, Meta(description="When it was created.")]
    expires_at: Annotated[Time, Meta(description="When it expires. Never later than its key.")]
    scopes: Annotated[list[Scope], Meta(description="What the session may do.")]
    database: Annotated[str | None, Meta(description="The database that the session is restricted to, if any.")]
    key_id: Annotated[str, Meta(description="Identifier of the key it was created with.")]


class NewSession(Session, kw_only=True):
    """A new session, with its token."""

    token: Annotated[str, Meta(description="Send it instead of an API key. It is shown only in this response.")]


class SessionAnswer(msgspec.Struct, kw_only=True):
    """One session."""

    success: Success = True
    session: Session
    request_id: RequestId


class NewSessionAnswer(msgspec.Struct, kw_only=True):
    """The new session, with its token."""

    success: Success = True
    session: NewSession
    request_id: RequestId


_session_body = msgspec.json.Decoder(SessionBody)


class SessionRoutes:
    """The handlers of the three session routes."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def post(self, request: Request, principal: Principal) -> Response:
        body = decoded_body(request, _session_body)
        by = Actor.of(principal, request.id)
        life = timedelta(seconds=body.expires_in_seconds)
        session, token = await sessions.create(self._directory, principal, by, body.scopes, body.database, life=life)
        shown = NewSession(**msgspec.structs.asdict(_shown(session)), token=token.text)
        return json_response(201, NewSessionAnswer(session=shown, request_id=request.id))

    async def refresh(self, request: Request, principal: Principal) -> Response:
        session = await sessions.refresh(self._directory, principal, Actor.of(principal, request.id))
        return json_response(200, SessionAnswer(session=_shown(session), request_id=request.id))

    async def delete(self, request: Request, principal: Principal) -> Response:
        await sessions.end(self._directory, principal, Actor.of(principal, request.id))
        return no_content()


def _shown(session: SessionRecord) -> Session:
    return Session(
        id=session.id,
        created_at=session.created_at,
        expires_at=session.ends_at,
        scopes=sorted(session.scopes),
        database=session.database_name,
        key_id=session.key_id,
    )
