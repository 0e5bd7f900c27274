"""/v1/keys: API keys. A secret is in the answer to its creation or rotation, and nowhere else.

Owns the shapes. The rules are `control_plane/keys.py`'s.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from plainsql_server.control_plane import keys
from plainsql_server.control_plane.states import CredentialState
from plainsql_server.core.ids import Kind
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.keys import KeyRecord
from plainsql_server.http.control import (
    PageOptions,
    administrator,
    answer,
    id_of,
    no_content,
    page,
    read_body,
    read_cursor,
)
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response

_OVERLAP_DEFAULT_S = 3_600
_OVERLAP_LONGEST_S = 30 * 86_400
_WORDS = {CredentialState.ENDED: "revoked"}


class KeyBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/keys."""

    name: str
    scopes: list[Scope]
    database: str | None = None
    expires_at: datetime | None = None


class RotationBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/keys/{id}/rotate."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=_OVERLAP_LONGEST_S)] = _OVERLAP_DEFAULT_S


_key_body = msgspec.json.Decoder(KeyBody)
_rotation_body = msgspec.json.Decoder(RotationBody)


class KeyRoutes:
    """The handlers of the key routes."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def post(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        body = await read_body(request, principal, _key_body)
        key, secret = await keys.create(
            self._directory, principal.organization_id, body.name, body.scopes,
            database=body.database, expires_at=body.expires_at, by=by,
        )  # fmt: skip
        return answer(request, 201, key={**_shown(key), "secret": secret.text})

    async def list_(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(PageOptions)
        after = read_cursor(options.cursor)
        found = await keys.list_(self._directory, principal.organization_id, options.limit + 1, after)
        return page(request, "keys", found, options.limit, shown=_shown, position=lambda key: key.id)

    async def get(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        key = await keys.get(self._directory, principal.organization_id, _id(request))
        return answer(request, 200, key=_shown(key))

    async def rotate(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        body = await read_body(request, principal, _rotation_body)
        overlap = timedelta(seconds=body.overlap_seconds)
        new, old, secret = await keys.rotate(self._directory, principal.organization_id, _id(request), overlap, by)
        return answer(request, 201, key={**_shown(new), "secret": secret.text}, replaced=_shown(old))

    async def delete(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        await keys.revoke(self._directory, _id(request), principal.organization_id, by)
        return no_content()


def _id(request: Request) -> str:
    return id_of(request, Kind.KEY, "key_not_found")


def _shown(key: KeyRecord) -> dict[str, Any]:
    state = keys.state_of(key)
    return {
        "id": key.id,
        "name": key.name,
        "state": _WORDS.get(state, state),
        "prefix": key.shown_prefix,
        "last_four": key.last_four,
        "scopes": sorted(key.scopes),
        "database": key.database_name,
        "created_at": key.created_at,
        "last_used_at": key.last_used_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "replaces": key.replaces,
    }
