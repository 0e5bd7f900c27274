"""Every control route and every kind of credential: who is let in, who is not, and that others' things do not exist."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from plainsql_server.core.credential import new_key as credential_of_nobody
from plainsql_server.http.app.routes import Caller, Route
from server.tests.end_to_end import tenants
from server.tests.end_to_end.control import answer, call, new_key, new_session
from server.tests.end_to_end.error_shape import check_shape
from server.tests.processes import wait_for
from server.tests.service import Service
from server.tests.test_completeness import declared_routes

ROUTES = [route for route in asyncio.run(declared_routes())["control"] if route.scope is not None]
# Of these a key is the wrong kind of credential.
NEEDS_A_SESSION = {("POST", "/v1/session/refresh"), ("DELETE", "/v1/session")}

Make = Callable[[Service], str | None]


def once_refused(service: Service, secret: str) -> str:
    """The secret, when the control plane has heard that it is no longer valid; `test_revocation.py` says how soon."""
    own = "/v1/organizations/current"
    wait_for(lambda: call(service, "GET", own, key=secret).status_code == 401, 30, lambda: "it is still accepted")
    return secret


def revoked(service: Service) -> str:
    key = new_key(service, "read", "write", "admin")
    answer(service, "DELETE", f"/v1/keys/{key['id']}", status=204)
    return once_refused(service, key["secret"])


def expired(service: Service) -> str:
    key = new_key(service, "read", "write", "admin")
    with service.engine("plainsql_directory") as directory:
        directory.execute("UPDATE api_keys SET expires_at = now() WHERE id = %s", (key["id"],))
    return once_refused(service, key["secret"])


def ended_session(service: Service) -> str:
    session = new_session(service)
    answer(service, "DELETE", "/v1/session", status=204, key=session["token"])
    return once_refused(service, session["token"])


def expired_session(service: Service) -> str:
    session = new_session(service)
    with service.engine("plainsql_directory") as directory:
        directory.execute(
            "UPDATE sessions SET created_at = created_at - %(day)s, expires_at = expires_at - %(day)s"
            " WHERE id = %(id)s",
            {"day": timedelta(days=1), "id": session["id"]},
        )
    return once_refused(service, session["token"])


def other_organizations(service: Service) -> str:
    tenants.free_key(service)
    return service.new_key("admin", org="other")


def bound(service: Service) -> str:
    return str(new_key(service, "read", "write", "admin", database="main")["secret"])


NOBODY: dict[str, Make] = {
    "no key": lambda _: None,
    "malformed": lambda _: "svc_k_" + "0" * 38,
    # Well formed and with the right checksum, so that only the directory can tell.
    "unknown": lambda _: credential_of_nobody().text,
    "expired": expired,
    "revoked": revoked,
    "ended session": ended_session,
    "expired session": expired_session,
}
SCOPED: dict[str, Make] = {
    "read": lambda service: str(new_key(service, "read")["secret"]),
    "write": lambda service: str(new_key(service, "write")["secret"]),
    "read and write session": lambda service: str(new_session(service, scopes=["read", "write"])["token"]),
    "admin": lambda service: str(new_key(service, "admin")["secret"]),
    "admin session": lambda service: str(new_session(service, scopes=["admin"])["token"]),
}
_made: dict[str, str | None] = {}


def credential(service: Service, name: str, make: Make) -> str | None:
    """The credential of that kind, made once. A valid session is made each time: one of the routes ends it."""
    if name not in _made or (name in SCOPED and "session" in name):
        _made[name] = make(service)
    return _made[name]


def filled(service: Service, route: Route, ours: bool) -> str:
    """The route's path, with the id of something of ours, or of nothing."""
    kind = "key" if "keys" in route.path else "rst" if "restores" in route.path else "db"
    found = f"{kind}_{'0' * 32}"
    if ours and kind == "key":
        found = answer(service, "GET", "/v1/keys?limit=1")["keys"][0]["id"]
    elif ours and kind == "db":
        found = answer(service, "GET", "/v1/databases?limit=1")["databases"][0]["id"]
    return route.path.replace("{id}", found)


def name_of(value: Any) -> str:
    return f"{value.method} {value.path}" if isinstance(value, Route) else str(value)


@pytest.mark.parametrize("kind", NOBODY)
@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_requests_without_valid_credentials_are_401(service: Service, route: Route, kind: str) -> None:
    key = credential(service, kind, NOBODY[kind])
    response = call(service, route.method, filled(service, route, ours=True), key=key, json={})
    assert response.status_code == 401, response.text
    assert check_shape(response)["error"]["code"] == "unauthenticated"


def takes(route: Route, kind: str) -> bool:
    """Whether a kind of credential has a place on a route at all; test_sessions.py tells what happens otherwise."""
    if (route.method, route.path) == ("POST", "/v1/session"):
        return "session" not in kind
    return "session" in kind or (route.method, route.path) not in NEEDS_A_SESSION


@pytest.mark.parametrize(
    ("route", "kind"), [(route, kind) for route in ROUTES for kind in SCOPED if takes(route, kind)], ids=name_of
)
def test_a_route_asks_for_the_scope_that_it_declares(service: Service, route: Route, kind: str) -> None:
    key = credential(service, kind, SCOPED[kind])
    response = call(service, route.method, filled(service, route, ours=False), key=key, json={})
    allowed = isinstance(route.scope, Caller) or "admin" in kind
    assert (response.status_code not in (401, 403)) == allowed, response.text
    assert response.status_code < 500


@pytest.mark.parametrize("route", [route for route in ROUTES if "{id}" in route.path], ids=name_of)
def test_objects_of_another_organization_are_not_found(service: Service, route: Route) -> None:
    key = credential(service, "other", other_organizations)
    body = {"name": "mine"} if route.method == "PATCH" else {}
    theirs = call(service, route.method, filled(service, route, ours=True), key=key, json=body)
    nobodys = call(service, route.method, filled(service, route, ours=False), key=key, json=body)
    assert theirs.status_code == nobodys.status_code == 404
    assert check_shape(theirs)["error"]["code"] == check_shape(nobodys)["error"]["code"]


@pytest.mark.parametrize("path", ["/v1/keys", "/v1/databases", "/v1/usage", "/v1/audit", "/v1/organizations/current"])
def test_no_list_shows_anything_of_another_organizations(service: Service, path: str) -> None:
    ours = str(answer(service, "GET", "/v1/organizations/current")["organization"]["id"])
    key_id = answer(service, "GET", "/v1/keys?limit=1")["keys"][0]["id"]
    shown = call(service, "GET", path, key=credential(service, "other", other_organizations)).text
    assert ours not in shown
    assert key_id not in shown


@pytest.mark.parametrize("route", [route for route in ROUTES if takes(route, "key")], ids=name_of)
def test_a_credential_for_one_database_does_not_administer(service: Service, route: Route) -> None:
    key = credential(service, "bound", bound)
    response = call(service, route.method, filled(service, route, ours=False), key=key, json={})
    assert (response.status_code == 403) == (not isinstance(route.scope, Caller)), response.text


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_control_routes_are_on_the_control_plane_alone(service: Service, route: Route) -> None:
    response = service.call(route.method, filled(service, route, ours=False))
    assert response.status_code == 404
    assert service.http.post(f"{service.control_url}/v1/query", json={"sql": "select 1"}).status_code == 404
