"""The control plane's routes, each with its scope and contract.

All require the scope `admin`, except the session routes, reading your own organization, and the console's files.
"""

from collections.abc import Callable

from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.http.app.contract import JSON_TYPE, Contract, Media, Parameter
from plainsql_server.http.app.fields import DATABASE_NAME_PATTERN
from plainsql_server.http.app.health import Urls
from plainsql_server.http.app.routes import Answer, Caller, Route, known_callers_route, scoped_route
from plainsql_server.http.control.answering import MAX_BODY_BYTES
from plainsql_server.http.control.console import ConsoleRoutes
from plainsql_server.http.control.databases import (
    BranchAtAnswer,
    DatabaseAnswer,
    DatabaseChangeBody,
    DatabaseRoutes,
    DatabasesAnswer,
    DeletionOptions,
    NewDatabaseBody,
    RestoreBody,
)
from plainsql_server.http.control.keys import (
    KeyAnswer,
    KeyBody,
    KeyRoutes,
    KeysAnswer,
    NewKeyAnswer,
    RotationAnswer,
    RotationBody,
)
from plainsql_server.http.control.mcp.route import MAX_MCP_BODY_BYTES, McpOptions, McpRoute
from plainsql_server.http.control.organizations import (
    AuditAnswer,
    CallerAnswer,
    OrganizationAnswer,
    OrganizationChangeBody,
    OrganizationRoutes,
    UsageAnswer,
    UsageOptions,
)
from plainsql_server.http.control.paging import PageOptions
from plainsql_server.http.control.restores import RestoreAnswer, RestoreRoutes, RestoresAnswer
from plainsql_server.http.control.sessions import NewSessionAnswer, SessionAnswer, SessionBody, SessionRoutes

_EXAMPLE_ID = "01a1dd58598e22a80592d43343fe5435"


_KEY = Parameter(
    "id", "The key's id, not its secret.", {"type": "string", "pattern": "^key_[0-9a-z]{1,64}$"}, f"key_{_EXAMPLE_ID}"
)
_DATABASE = Parameter(
    "id", "The database's name or id.", {"type": "string", "pattern": DATABASE_NAME_PATTERN}, f"db_{_EXAMPLE_ID}"
)
_RESTORE = Parameter(
    "id", "The restore's id.", {"type": "string", "pattern": "^rst_[0-9a-z]{1,64}$"}, f"rst_{_EXAMPLE_ID}"
)
_RESTORE_ERRORS = (
    "invalid_time", "not_in_archive", "archive_too_short", "restore_under_way", "restore_limit", "restore_unavailable",
)  # fmt: skip
# Errors of the cell, which can occur while a database is created.
_CELL_ERRORS = ("engine_unavailable", "connection_lost", "overloaded")


def control_routes(
    directory: Directory, urls: Urls, restore_s: int, there_is_work: Callable[[], None], mcp: McpRoute
) -> list[Route]:
    """Every route of the control plane, except those that both planes share."""
    return [
        *_session_routes(SessionRoutes(directory)),
        *_key_routes(KeyRoutes(directory)),
        *_database_routes(DatabaseRoutes(directory, urls, restore_s, there_is_work)),
        *_restore_routes(RestoreRoutes(directory)),
        *_organization_routes(OrganizationRoutes(directory)),
        _mcp_route(mcp),
        *ConsoleRoutes(urls).routes(),
    ]


def _session_routes(sessions: SessionRoutes) -> list[Route]:
    made = Contract(
        body=SessionBody,
        max_body_bytes=MAX_BODY_BYTES,
        examples={"Same scopes as the key": {}, "For a web page": {"scopes": ["read"], "expires_in_seconds": 900}},
        answers={201: NewSessionAnswer},
        errors=("no_scopes", "database_not_found", "session_limit"),
    )
    refreshed = Contract(answers={200: SessionAnswer}, errors=())
    ended = Contract(answers={204: None}, errors=())
    return [
        known_callers_route(
            "POST", "/v1/session", "Exchange an API key for a session", sessions.post,
            contract=made, caller=Caller.ANY_KEY, key_in_body=True,
        ),
        known_callers_route(
            "POST", "/v1/session/refresh", "Extend the session by 24 hours", sessions.refresh,
            contract=refreshed, caller=Caller.ANY_SESSION,
        ),
        known_callers_route(
            "DELETE", "/v1/session", "End the session", sessions.delete, contract=ended, caller=Caller.ANY_SESSION
        ),
    ]  # fmt: skip


def _key_routes(keys: KeyRoutes) -> list[Route]:
    made = Contract(
        body=KeyBody,
        max_body_bytes=MAX_BODY_BYTES,
        examples={"For a website": {"name": "website", "scopes": ["write"]}},
        answers={201: NewKeyAnswer},
        errors=("invalid_name", "no_scopes", "invalid_expiry", "database_not_found", "key_limit"),
    )
    listed = Contract(options=PageOptions, answers={200: KeysAnswer}, errors=())
    shown = Contract(path=_KEY, answers={200: KeyAnswer}, errors=("key_not_found",))
    rotated = Contract(
        path=_KEY,
        body=RotationBody,
        max_body_bytes=MAX_BODY_BYTES,
        examples={"One hour of overlap": {"overlap_seconds": 3600}},
        answers={201: RotationAnswer},
        errors=("key_not_found", "key_not_active", "key_replaced", "database_not_found", "key_limit"),
    )
    revoked = Contract(path=_KEY, answers={204: None}, errors=("key_not_found",))
    return [
        _admin("POST", "/v1/keys", "Create an API key", keys.post, made),
        _admin("GET", "/v1/keys", "List API keys", keys.list_, listed),
        _admin("GET", "/v1/keys/{id}", "Show an API key", keys.get, shown),
        _admin("POST", "/v1/keys/{id}/rotate", "Rotate an API key", keys.rotate, rotated),
        _admin("DELETE", "/v1/keys/{id}", "Revoke an API key", keys.delete, revoked),
    ]


def _database_routes(databases: DatabaseRoutes) -> list[Route]:
    made = Contract(
        body=NewDatabaseBody,
        max_body_bytes=MAX_BODY_BYTES,
        examples={
            "A shop": {"name": "shop"}, "A copy to try things on": {"name": "shop-test", "branch_of": "shop"},
            "A copy as it was": {"name": "shop-before", "branch_of": "shop", "at": "2026-11-14T22:15:31Z"},
        },
        answers={201: DatabaseAnswer, 202: BranchAtAnswer},
        errors=("invalid_name", "name_taken", "database_limit", "database_not_found", "organization_not_found",
                "no_active_cell", "creation_unavailable", "invalid_expiry", "wrong_state", "database_busy",
                "branch_limit", "branch_too_large", *_RESTORE_ERRORS, *_CELL_ERRORS),
    )  # fmt: skip
    listed = Contract(options=PageOptions, answers={200: DatabasesAnswer}, errors=())
    shown = Contract(path=_DATABASE, answers={200: DatabaseAnswer}, errors=("database_not_found",))
    changed = Contract(
        path=_DATABASE,
        body=DatabaseChangeBody,
        max_body_bytes=MAX_BODY_BYTES,
        examples={"Rename it": {"name": "store"}, "Make it the default": {"default": True}},
        answers={200: DatabaseAnswer},
        errors=("database_not_found", "invalid_name", "name_taken", "wrong_state"),
    )
    deleted = Contract(
        path=_DATABASE,
        options=DeletionOptions,
        answers={202: DatabaseAnswer},
        errors=("database_not_found", "wrong_state"),
    )
    restored = Contract(
        path=_DATABASE,
        body=RestoreBody,
        max_body_bytes=MAX_BODY_BYTES,
        examples={"A deleted database": {}, "As it was": {"at": "2026-11-14T22:15:31Z"}},
        answers={200: DatabaseAnswer, 202: RestoreAnswer},
        errors=("database_not_found", "wrong_state", "invalid_name", "name_taken", "database_limit",
                "no_active_cell", "branch_limit", "branch_too_large", *_RESTORE_ERRORS, *_CELL_ERRORS),
    )  # fmt: skip
    return [
        _admin("POST", "/v1/databases", "Create a database", databases.post, made),
        _admin("GET", "/v1/databases", "List databases", databases.list_, listed),
        _admin("GET", "/v1/databases/{id}", "Show a database", databases.get, shown),
        _admin("PATCH", "/v1/databases/{id}", "Rename a database, or make it the default", databases.patch, changed),
        _admin("DELETE", "/v1/databases/{id}", "Delete a database", databases.delete, deleted),
        _admin("POST", "/v1/databases/{id}/restore", "Restore a deleted database, or one as it was at a time",
               databases.restore, restored),
    ]  # fmt: skip


def _restore_routes(restores: RestoreRoutes) -> list[Route]:
    listed = Contract(options=PageOptions, answers={200: RestoresAnswer}, errors=())
    shown = Contract(path=_RESTORE, answers={200: RestoreAnswer}, errors=("restore_not_found",))
    return [
        _admin("GET", "/v1/restores", "List restores to a point in time", restores.list_, listed),
        _admin("GET", "/v1/restores/{id}", "Show a restore, and how far it is", restores.get, shown),
    ]


def _organization_routes(organizations: OrganizationRoutes) -> list[Route]:
    shown = Contract(answers={200: CallerAnswer}, errors=("organization_not_found",))
    changed = Contract(
        body=OrganizationChangeBody,
        max_body_bytes=MAX_BODY_BYTES,
        examples={"Rename it": {"name": "Acme Ltd"}},
        answers={200: OrganizationAnswer},
        errors=("invalid_name", "organization_not_found"),
    )
    used = Contract(options=UsageOptions, answers={200: UsageAnswer}, errors=())
    audited = Contract(options=PageOptions, answers={200: AuditAnswer}, errors=())
    return [
        known_callers_route(
            "GET",
            "/v1/organizations/current",
            "Show your organization and credential",
            organizations.get,
            contract=shown,
        ),
        _admin("PATCH", "/v1/organizations/current", "Rename your organization", organizations.patch, changed),
        _admin("GET", "/v1/usage", "Show usage by day and database", organizations.get_usage, used),
        _admin("GET", "/v1/audit", "Show the audit log", organizations.get_audit, audited),
    ]


def _mcp_route(mcp: McpRoute) -> Route:
    answer = Media(JSON_TYPE, "A JSON-RPC answer of the Model Context Protocol.")
    refusal = Media(JSON_TYPE, "A JSON-RPC error: the message is invalid.")
    unknown = Media(JSON_TYPE, "A JSON-RPC error: there is no such method.")
    contract = Contract(
        examples={"The tools": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}},
        body=Media(JSON_TYPE, "One JSON-RPC message of the Model Context Protocol, in any of its versions."),
        max_body_bytes=MAX_MCP_BODY_BYTES,
        options=McpOptions,
        answers={200: answer, 202: None, 400: refusal, 404: unknown},
        errors=("mcp_not_installed",),
    )
    return known_callers_route("POST", "/mcp", "Model Context Protocol, for agents", mcp.post, contract=contract)


def _admin(method: str, path: str, purpose: str, answer: Answer, contract: Contract) -> Route:
    return scoped_route(method, path, Scope.ADMIN, purpose, answer, contract=contract)
