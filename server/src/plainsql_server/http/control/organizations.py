"""/v1/organizations/current, /v1/usage and /v1/audit: the caller's organization, its usage and its audit log.

Only the operator can create organizations.
"""

from datetime import date, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from plainsql_server.control_plane import organizations
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.clock import now
from plainsql_server.core.errors import RequestError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory import audit, databases, keys, sessions, usage
from plainsql_server.directory.audit import AuditRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.directory.usage import UsageRecord
from plainsql_server.http.app.fields import Title
from plainsql_server.http.control.answering import administrator, decoded_body
from plainsql_server.http.control.paging import PageOptions, page, read_cursor, wrong_cursor
from plainsql_server.http.server.answers import Count, Cursor, Microseconds, RequestId, Success, Time
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response

# The default number of days.
_USAGE_DAYS = 30
_USAGE_MOST_DAYS = 366


class OrganizationChangeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of PATCH /v1/organizations/current."""

    name: Title


class UsageOptions(PageOptions, kw_only=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """The query string of GET /v1/usage."""

    first: Annotated[date | None, Meta(description="First day, in UTC. Default: 29 days before `to`.")] = None
    last: Annotated[date | None, Meta(description="Last day, in UTC. Default: today.")] = None


class Organization(msgspec.Struct, kw_only=True):
    """An organization."""

    id: Annotated[str, Meta(description="Identifier of the organization.")]
    name: Annotated[str, Meta(description="Name of the organization.")]
    tier: Annotated[str, Meta(description="The tier, which sets its limits.")]
    created_at: Annotated[Time, Meta(description="When it was created.")]


class OrganizationAnswer(msgspec.Struct, kw_only=True):
    """Your organization."""

    success: Success = True
    organization: Organization
    request_id: RequestId


class Credential(msgspec.Struct, kw_only=True):
    """The key or session that you sent."""

    kind: Annotated[
        str, Meta(description="Whether it is a key or a session.", extra_json_schema={"enum": ["key", "session"]})
    ]
    id: Annotated[str, Meta(description="Identifier of the key or session.")]
    scopes: Annotated[list[Scope], Meta(description="What it may do.")]
    database: Annotated[str | None, Meta(description="The database that it is bound to, if any.")]
    expires_at: Annotated[Time | None, Meta(description="When it expires, if ever.")]


class CallerAnswer(msgspec.Struct, kw_only=True):
    """Your organization, and the credential that you sent."""

    success: Success = True
    organization: Organization
    credential: Credential
    default_database: Annotated[
        str | None,
        Meta(
            description="Name of the database that your requests use if they name none: the organization's default."
            " Null if there is none, and if your credential is bound to a database."
        ),
    ]
    request_id: RequestId


class Usage(msgspec.Struct, kw_only=True):
    """The usage of one database on one day."""

    day: Annotated[date, Meta(description="The day, in UTC.")]
    database_id: Annotated[str, Meta(description="Identifier of the database.")]
    database: Annotated[str, Meta(description="Name of the database.")]
    requests: Annotated[Count, Meta(description="Requests that reached PostgreSQL.")]
    rows: Annotated[Count, Meta(description="Rows returned to you.")]
    engine_us: Annotated[Microseconds, Meta(description="Time spent in PostgreSQL, in microseconds.")]
    bytes: Annotated[Count, Meta(description="Size of the rows returned to you, in bytes.")]


class UsageAnswer(msgspec.Struct, kw_only=True):
    """A page of usage."""

    success: Success = True
    usage: list[Usage]
    next: Cursor
    request_id: RequestId


class AuditActor(msgspec.Struct, kw_only=True):
    """Who made the change."""

    kind: Annotated[
        str,
        Meta(
            description="The kind of actor.",
            extra_json_schema={"enum": ["key", "session", "operator", "service"]},
        ),
    ]
    id: Annotated[str | None, Meta(description="Identifier of the key or session, if there is one.")]


class AuditEntry(msgspec.Struct, kw_only=True):
    """One change on the control plane."""

    id: Annotated[str, Meta(description="Identifier of the entry.")]
    at: Annotated[Time, Meta(description="When the change was made.")]
    actor: AuditActor
    action: Annotated[str, Meta(description="What was done, such as `database.rename`.")]
    target_id: Annotated[str, Meta(description="Identifier of what was changed.")]
    details: Annotated[dict[str, Any], Meta(description="Details of the change, such as new values.")]
    request_id: Annotated[str | None, Meta(description="The request that made the change, if any.")]


class AuditAnswer(msgspec.Struct, kw_only=True):
    """A page of the audit log, newest first."""

    success: Success = True
    audit: list[AuditEntry]
    next: Cursor
    request_id: RequestId


_change_body = msgspec.json.Decoder(OrganizationChangeBody)


class OrganizationRoutes:
    """The handlers of the routes about the caller's organization."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def get(self, request: Request, principal: Principal) -> Response:
        found = await organizations.get(self._directory, principal.organization_id)
        credential = _shown_credential(principal, await self._expiry(principal))
        default = None if principal.database else await databases.find(self._directory, principal.organization_id, None)
        shown = CallerAnswer(
            organization=_shown(found),
            credential=credential,
            default_database=default.name if default else None,
            request_id=request.id,
        )
        return json_response(200, shown)

    async def _expiry(self, principal: Principal) -> datetime | None:
        if principal.session_id is None:
            key = await keys.find(self._directory, principal.key_id, principal.organization_id)
            return key.ends_at if key else None
        session = await sessions.find(self._directory, principal.session_id, principal.organization_id)
        return session.ends_at if session else None

    async def patch(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        body = decoded_body(request, _change_body)
        changed = await organizations.rename(self._directory, principal.organization_id, body.name, by)
        return json_response(200, OrganizationAnswer(organization=_shown(changed), request_id=request.id))

    async def get_usage(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(UsageOptions)
        last = options.last or now().date()
        first = options.first or last - min(timedelta(days=_USAGE_DAYS - 1), last - date.min)
        if not timedelta(0) <= last - first < timedelta(days=_USAGE_MOST_DAYS):
            raise RequestError("invalid_option", f"The range from `from` to `to` must be 1 to {_USAGE_MOST_DAYS} days.")
        after = _usage_position(options.cursor)
        found = await usage.list_(
            self._directory, principal.organization_id, first, last, limit=options.limit + 1, after=after
        )
        here, next_cursor = page(found, options.limit, lambda used: f"{used.day} {used.database_id}")
        shown = [_shown_usage(used) for used in here]
        return json_response(200, UsageAnswer(usage=shown, next=next_cursor, request_id=request.id))

    async def get_audit(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(PageOptions)
        before = read_cursor(options.cursor)
        found = await audit.list_(self._directory, principal.organization_id, options.limit + 1, before)
        here, next_cursor = page(found, options.limit, lambda entry: entry.id)
        shown = [_shown_audit(entry) for entry in here]
        return json_response(200, AuditAnswer(audit=shown, next=next_cursor, request_id=request.id))


def _usage_position(cursor: str | None) -> tuple[date, str] | None:
    position = read_cursor(cursor)
    if position is None:
        return None
    day, _, database_id = position.partition(" ")
    try:
        return date.fromisoformat(day), database_id
    except ValueError as error:
        raise wrong_cursor() from error


def _shown(organization: OrganizationRecord) -> Organization:
    return Organization(
        id=organization.id, name=organization.name, tier=organization.tier, created_at=organization.created_at
    )


def _shown_credential(principal: Principal, expires_at: datetime | None) -> Credential:
    return Credential(
        kind="key" if principal.session_id is None else "session",
        id=principal.session_id or principal.key_id,
        scopes=sorted(principal.scopes),
        database=principal.database,
        expires_at=expires_at,
    )


def _shown_usage(used: UsageRecord) -> Usage:
    return Usage(
        day=used.day,
        database_id=used.database_id,
        database=used.database,
        requests=used.requests,
        rows=used.rows,
        engine_us=used.engine_us,
        bytes=used.bytes,
    )


def _shown_audit(entry: AuditRecord) -> AuditEntry:
    return AuditEntry(
        id=entry.id,
        at=entry.at,
        # Customers need not know who works for the operator.
        actor=AuditActor(kind=entry.actor_kind, id=None if entry.actor_kind == OPERATOR.kind else entry.actor_id),
        action=entry.action,
        target_id=entry.target_id,
        details=entry.details,
        request_id=entry.request_id,
    )
