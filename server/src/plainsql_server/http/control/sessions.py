"""/v1/session: a token that stands for an API key for a while, so that browsers need not keep the key.

Owns the shapes. The rules are `control_plane/sessions.py`'s.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.control_plane import sessions
from plainsql_server.core.actor import Actor
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sessions import SessionRecord
from plainsql_server.http.app.fields import DatabaseName
from plainsql_server.http.control.answering import no_content, read_body
from plainsql_server.http.server.answers import RequestId, Success, Time
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response


class SessionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/session."""

    # Where the key stands here, it has been read before.
    scopes: Annotated[
        Annotated[list[Scope], Meta(extra_json_schema={"minItems": 1})] | None,
        Meta(description="Fewer scopes than the key has."),
    ] = None
    database: Annotated[DatabaseName | None, Meta(description="Bind the session to this database.")] = None
    api_key: Annotated[str | None, Meta(description="The key, if it is not in the header.")] = None


class Session(msgspec.Struct, kw_only=True):
    """A session, without its token."""

    id: Annotated[str, Meta(description="Names it.")]
    created_at: Annotated[Time, Meta(description="When it was made.")]
    expires_at: Annotated[Time, Meta(description="When it stops working by itself: never after its key does.")]
    scopes: Annotated[list[Scope], Meta(description="What it may do.")]
    database: Annotated[str | None, Meta(description="The database that it is bound to.")]
    key_id: Annotated[str, Meta(description="The key that it stands for.")]


class NewSession(Session, kw_only=True):
    """A fresh session."""

    token: Annotated[str, Meta(description="Sent like a key. Shown in this answer only.")]


class SessionAnswer(msgspec.Struct, kw_only=True):
    """One session."""

    success: Success = True
    session: Session
    request_id: RequestId


class NewSessionAnswer(msgspec.Struct, kw_only=True):
    """A fresh session with its token."""

    success: Success = True
    session: NewSession
    request_id: RequestId


_session_body = msgspec.json.Decoder(SessionBody)


class SessionRoutes:
    """The handlers of the three session routes."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def post(self, request: Request, principal: Principal) -> Response:
        body = await read_body(request, principal, _session_body)
        by = Actor.of(principal, request.id)
        session, token = await sessions.create(self._directory, principal, by, body.scopes, body.database)
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
