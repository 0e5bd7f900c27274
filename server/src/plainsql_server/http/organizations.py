"""/v1/organizations/current: the organization that the caller belongs to, its usage and its audit log.

Owns the shapes of these three. Organizations are created by the operator alone.
"""

from datetime import date, timedelta
from typing import Any

import msgspec

from plainsql_server.control_plane import organizations
from plainsql_server.core.clock import now
from plainsql_server.core.errors import RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.directory import audit, usage
from plainsql_server.directory.audit import AuditRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.directory.usage import UsageRecord
from plainsql_server.http.control import (
    PageOptions,
    administrator,
    answer,
    page,
    read_body,
    read_cursor,
    wrong_cursor,
)
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response

# What is shown unless the caller says which days.
_USAGE_DAYS = 30
_USAGE_MOST_DAYS = 366


class ChangeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of PATCH /v1/organizations/current."""

    name: str


class UsageOptions(PageOptions, kw_only=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """The query string of GET /v1/usage."""

    first: date | None = None
    last: date | None = None


_change_body = msgspec.json.Decoder(ChangeBody)


class OrganizationRoutes:
    """The handlers of the routes about the caller's organization."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def get(self, request: Request, principal: Principal) -> Response:
        found = await organizations.get(self._directory, principal.organization_id)
        return answer(request, 200, organization=_shown(found))

    async def patch(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        body = await read_body(request, principal, _change_body)
        changed = await organizations.rename(self._directory, principal.organization_id, body.name, by)
        return answer(request, 200, organization=_shown(changed))

    async def get_usage(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(UsageOptions)
        last = options.last or now().date()
        first = options.first or last - min(timedelta(days=_USAGE_DAYS - 1), last - date.min)
        if not timedelta(0) <= last - first < timedelta(days=_USAGE_MOST_DAYS):
            raise RequestError("invalid_option", f"Ask for 1 to {_USAGE_MOST_DAYS} days.")
        after = _usage_position(options.cursor)
        found = await usage.list_(
            self._directory, principal.organization_id, first, last, limit=options.limit + 1, after=after
        )
        return page(
            request, "usage", found, options.limit,
            shown=_shown_usage, position=lambda used: f"{used.day} {used.database_id}",
        )  # fmt: skip

    async def get_audit(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(PageOptions)
        before = read_cursor(options.cursor)
        found = await audit.list_(self._directory, principal.organization_id, options.limit + 1, before)
        return page(
            request, "audit", found, options.limit, shown=_shown_audit, position=lambda entry: entry.id
        )  # fmt: skip


def _usage_position(cursor: str | None) -> tuple[date, str] | None:
    position = read_cursor(cursor)
    if position is None:
        return None
    day, _, database_id = position.partition(" ")
    try:
        return date.fromisoformat(day), database_id
    except ValueError as error:
        raise wrong_cursor() from error


def _shown(organization: OrganizationRecord) -> dict[str, Any]:
    return {
        "id": organization.id,
        "name": organization.name,
        "tier": organization.tier,
        "created_at": organization.created_at,
    }


def _shown_usage(used: UsageRecord) -> dict[str, Any]:
    return {
        "day": used.day,
        "database_id": used.database_id,
        "database": used.database,
        "requests": used.requests,
        "rows": used.rows,
        "engine_us": used.engine_us,
        "bytes": used.bytes,
    }


def _shown_audit(entry: AuditRecord) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": entry.at,
        "actor": {"kind": entry.actor_kind, "id": entry.actor_id},
        "action": entry.action,
        "target_id": entry.target_id,
        "details": entry.details,
        "request_id": entry.request_id,
    }
