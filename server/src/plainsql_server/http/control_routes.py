"""The control plane's routes: each with its scope, in one list.

Owns the list. All need the scope admin, except those of a session and the reading of one's own organization.
"""

from collections.abc import Callable

from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.http.banner import Urls
from plainsql_server.http.databases import DatabaseRoutes
from plainsql_server.http.keys import KeyRoutes
from plainsql_server.http.organizations import OrganizationRoutes
from plainsql_server.http.routes import Answer, Route, known_callers_route, scoped_route
from plainsql_server.http.sessions import SessionRoutes


def control_routes(directory: Directory, urls: Urls, restore_s: int, there_is_work: Callable[[], None]) -> list[Route]:
    """Every route of the control plane, beside those that both planes have."""
    sessions = SessionRoutes(directory)
    keys = KeyRoutes(directory)
    databases = DatabaseRoutes(directory, urls, restore_s, there_is_work)
    organizations = OrganizationRoutes(directory)
    return [
        known_callers_route(
            "POST", "/v1/session", "Exchange an API key for a session", sessions.post, key_in_body=True
        ),
        known_callers_route("POST", "/v1/session/refresh", "Extend the session by 24 hours", sessions.refresh),
        known_callers_route("DELETE", "/v1/session", "End the session", sessions.delete),
        _admin("POST", "/v1/keys", "Create an API key", keys.post),
        _admin("GET", "/v1/keys", "List API keys", keys.list_),
        _admin("GET", "/v1/keys/{id}", "Show an API key", keys.get),
        _admin("POST", "/v1/keys/{id}/rotate", "Replace an API key by a new one", keys.rotate),
        _admin("DELETE", "/v1/keys/{id}", "Revoke an API key", keys.delete),
        _admin("POST", "/v1/databases", "Create a database", databases.post),
        _admin("GET", "/v1/databases", "List databases", databases.list_),
        _admin("GET", "/v1/databases/{id}", "Show a database", databases.get),
        _admin("PATCH", "/v1/databases/{id}", "Rename a database, or make it the default", databases.patch),
        _admin("DELETE", "/v1/databases/{id}", "Delete a database", databases.delete),
        _admin("POST", "/v1/databases/{id}/restore", "Restore a deleted database", databases.restore),
        known_callers_route("GET", "/v1/organizations/current", "Show your organization", organizations.get),
        _admin("PATCH", "/v1/organizations/current", "Rename your organization", organizations.patch),
        _admin("GET", "/v1/usage", "Show usage by day and database", organizations.get_usage),
        _admin("GET", "/v1/audit", "Show who changed what", organizations.get_audit),
    ]


def _admin(method: str, path: str, purpose: str, answer: Answer) -> Route:
    return scoped_route(method, path, Scope.ADMIN, purpose, answer)
