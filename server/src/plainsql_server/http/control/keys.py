"""/v1/keys: models and handlers for API keys. Only the answer to creation or rotation contains the secret.

The rules are in `control_plane/keys.py`.
"""

from datetime import datetime, timedelta
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from plainsql_server.control_plane import keys
from plainsql_server.control_plane.states import CredentialState
from plainsql_server.core.credential import Secret
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.keys import KeyRecord
from plainsql_server.http.app.fields import DatabaseName, Title
from plainsql_server.http.control.answering import administrator, decoded_body, key_id_of, no_content
from plainsql_server.http.control.paging import PageOptions, page, read_cursor
from plainsql_server.http.server.answers import Cursor, RequestId, Success, Time
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response

_OVERLAP_DEFAULT_S = 3_600
_OVERLAP_LONGEST_S = 30 * 86_400

KeyState = Literal["active", "expired", "revoked"]
_STATES: dict[CredentialState, KeyState] = {
    CredentialState.ACTIVE: "active",
    CredentialState.EXPIRED: "expired",
    CredentialState.ENDED: "revoked",
}


class KeyBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/keys."""

    name: Title
    scopes: Annotated[list[Scope], Meta(description="One or more scopes.", extra_json_schema={"minItems": 1})]
    database: Annotated[
        DatabaseName | None, Meta(description="Restrict the key to this database, by its name or id.")
    ] = None
    expires_at: Annotated[
        Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})] | None,
        Meta(description="When the key expires. Must be in the future and have a time zone."),
    ] = None


class RotationBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/keys/{id}/rotate."""

    overlap_seconds: Annotated[
        int, Meta(ge=0, le=_OVERLAP_LONGEST_S, description="How long the old key keeps working, in seconds.")
    ] = _OVERLAP_DEFAULT_S


class Key(msgspec.Struct, kw_only=True):
    """An API key, without its secret."""

    id: Annotated[str, Meta(description="Identifier of the key. It is not secret.")]
    name: Annotated[str, Meta(description="The name you gave it.")]
    state: Annotated[KeyState, Meta(description="Only an `active` key works.")]
    prefix: Annotated[str, Meta(description="The first characters of the secret.")]
    last_four: Annotated[str, Meta(description="The last four characters of the secret.")]
    scopes: Annotated[list[Scope], Meta(description="What the key may do.")]
    database: Annotated[str | None, Meta(description="The database that the key is restricted to, if any.")]
    created_at: Annotated[Time, Meta(description="When it was created.")]
    last_used_at: Annotated[
        Time | None, Meta(description="When its last request began. It is stored a few seconds later.")
    ]
    expires_at: Annotated[Time | None, Meta(description="When it expires.")]
    revoked_at: Annotated[Time | None, Meta(description="When it was revoked.")]
    replaces: Annotated[str | None, Meta(description="The id of the key that it replaced, if it was rotated.")]


class NewKey(Key, kw_only=True):
    """A new API key, with its secret."""

    secret: Annotated[str, Meta(description="The key itself. It is shown only in this response and never stored.")]


class KeyAnswer(msgspec.Struct, kw_only=True):
    """One key."""

    success: Success = True
    key: Key
    request_id: RequestId


class NewKeyAnswer(msgspec.Struct, kw_only=True):
    """The new key, with its secret."""

    success: Success = True
    key: NewKey
    request_id: RequestId


class RotationAnswer(msgspec.Struct, kw_only=True):
    """The new key, with its secret, and the key it replaces."""

    success: Success = True
    key: NewKey
    replaced: Key
    request_id: RequestId


class KeysAnswer(msgspec.Struct, kw_only=True):
    """A page of keys."""

    success: Success = True
    keys: list[Key]
    next: Cursor
    request_id: RequestId


_key_body = msgspec.json.Decoder(KeyBody)
_rotation_body = msgspec.json.Decoder(RotationBody)


class KeyRoutes:
    """The handlers of the key routes."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def post(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        body = decoded_body(request, _key_body)
        key, secret = await keys.create(
            self._directory, principal.organization_id, body.name, body.scopes,
            database=body.database, expires_at=body.expires_at, by=by,
        )  # fmt: skip
        return json_response(201, NewKeyAnswer(key=_shown_with(secret, key), request_id=request.id))

    async def list_(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(PageOptions)
        after = read_cursor(options.cursor)
        found = await keys.list_(self._directory, principal.organization_id, options.limit + 1, after)
        here, next_cursor = page(found, options.limit, lambda key: key.id)
        return json_response(
            200, KeysAnswer(keys=[_shown(key) for key in here], next=next_cursor, request_id=request.id)
        )

    async def get(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        key = await keys.get(self._directory, principal.organization_id, key_id_of(request))
        return json_response(200, KeyAnswer(key=_shown(key), request_id=request.id))

    async def rotate(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        body = decoded_body(request, _rotation_body)
        overlap = timedelta(seconds=body.overlap_seconds)
        new, old, secret = await keys.rotate(
            self._directory, principal.organization_id, key_id_of(request), overlap, by
        )
        shown = RotationAnswer(key=_shown_with(secret, new), replaced=_shown(old), request_id=request.id)
        return json_response(201, shown)

    async def delete(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        await keys.revoke(self._directory, key_id_of(request), principal.organization_id, by)
        return no_content()


def _shown(key: KeyRecord) -> Key:
    return Key(
        id=key.id,
        name=key.name,
        state=_STATES[keys.state_of(key)],
        prefix=key.shown_prefix,
        last_four=key.last_four,
        scopes=sorted(key.scopes),
        database=key.database_name,
        created_at=key.created_at,
        last_used_at=key.last_used_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        replaces=key.replaces,
    )


def _shown_with(secret: Secret, key: KeyRecord) -> NewKey:
    return NewKey(**msgspec.structs.asdict(_shown(key)), secret=secret.text)
