"""For every utility route: authorization, the alias, HEAD, rate limits, and the shared health check."""

import asyncio

import httpx
import pytest

from plainsql_server.core.credential import new_key as credential_of_nobody
from plainsql_server.core.principal import Scope
from plainsql_server.http.app.routes import Route
from server.tests.end_to_end import tenants
from server.tests.end_to_end.control import answer, new_key
from server.tests.end_to_end.error_shape import check_shape, error_of
from server.tests.service import Service, running_service
from server.tests.test_completeness import declared_routes

PATHS = {
    ("GET", "/tables"): Scope.READ,
    ("GET", "/bench"): Scope.WRITE,
    ("GET", "/capabilities"): Scope.READ,
    ("GET", "/capabilities/{name}"): Scope.WRITE,
    ("GET", "/storage/test"): Scope.WRITE,
    ("POST", "/admin/reset"): Scope.ADMIN,
}
ROUTES = [route for route in asyncio.run(declared_routes())["data"] if (route.method, route.path) in PATHS]


def path_of(route: Route) -> str:
    path = route.path.replace("{name}", "exact_numbers")
    return f"{path}?iterations=1" if path == "/bench" else path


def call(service: Service, route: Route, key: str | None, **headers: str) -> httpx.Response:
    # Nothing is confirmed by this, so that nothing is dropped.
    body = {"json": {"confirm": "nothing of the kind"}} if route.method == "POST" else {}
    return service.call(route.method, path_of(route), key=key, headers=headers, **body)


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_the_routes_are_those_of_the_specification_with_their_purposes(service: Service) -> None:
    listed = {(each["method"], each["path"]): each["purpose"] for each in service.call("GET", "/").json()["routes"]}
    assert {path: listed[path] for path in (*PATHS, ("GET", "/health"))} == {
        ("GET", "/tables"): "List tables",
        ("GET", "/health"): "Health check",
        ("GET", "/bench"): "Run a benchmark",
        ("GET", "/capabilities"): "Feature matrix",
        ("GET", "/capabilities/{name}"): "Run the probe called {name}",
        ("GET", "/storage/test"): "Storage round-trip test",
        ("POST", "/admin/reset"): "Wipe all data",
    }
    assert {(route.method, route.path): route.scope for route in ROUTES} == PATHS


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_requests_without_a_valid_key_are_rejected(service: Service, route: Route) -> None:
    for key in (None, "svc_k_x", credential_of_nobody().text):
        assert error_of(call(service, route, key), 401, "unauthenticated")


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_a_route_asks_for_the_scope_that_it_declares(service: Service, route: Route) -> None:
    for scope in Scope:
        key = str(new_key(service, scope)["secret"])
        response = call(service, route, key)
        may = scope is route.scope or (scope is Scope.WRITE and route.scope is Scope.READ)
        assert (response.status_code != 403) == may, response.text
        assert response.status_code < 500


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_the_database_is_chosen_as_for_queries(service: Service, route: Route) -> None:
    if route.path == "/capabilities":
        return
    error_of(call(service, route, service.api_key, **{"X-Database": "nowhere"}), 404, "database_not_found")
    bound = str(new_key(service, "write", "admin", database="main")["secret"])
    response = call(service, route, bound, **{"X-Database": tenants.second_database(service)})
    error_of(response, 403, "forbidden")


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_a_session_works_like_its_key(service: Service, route: Route) -> None:
    session = answer(service, "POST", "/v1/session", status=201, json={})
    assert call(service, route, session["token"]).status_code in (200, 400)


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_the_alias_serves_the_route_too(service: Service, route: Route) -> None:
    url = f"{service.dev['alias_url']}{path_of(route)}"
    headers = {"Authorization": f"Bearer {service.api_key}"}
    body = {"confirm": "nothing of the kind"} if route.method == "POST" else None
    response = service.http.request(route.method, url, headers=headers, json=body)
    assert response.status_code == (400 if route.method == "POST" else 200), response.text
    assert "alias;dur=" in response.headers["server-timing"]


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "GET"], ids=name_of)
def test_head_is_get_without_a_body(service: Service, route: Route) -> None:
    response = service.call("HEAD", path_of(route))
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) > 0


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_each_request_counts_and_reports_the_remaining_permits(service: Service, route: Route) -> None:
    key = tenants.free_key(service)
    response = call(service, route, key)
    assert response.headers["ratelimit-policy"] == '"org-free";q=200;w=60'
    assert "ratelimit" in response.headers
    if response.status_code != 200:
        check_shape(response)


def test_one_unavailable_cell_among_several_degrades_health() -> None:
    with running_service() as service, service.engine("plainsql_directory") as directory:
        directory.execute(
            "INSERT INTO cells SELECT (jsonb_populate_record(c, jsonb_build_object("
            " 'id', 'cell_' || repeat('0', 32), 'name', 'away', 'conninfo', 'host=127.0.0.1 port=1'))).* FROM cells c"
        )
        health = service.call("GET", "/health", key=None)
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert health.json()["checks"]["engine"] == "degraded"
        assert service.query("select 1")["success"]


async def test_concurrent_health_checks_share_one_answer(service: Service) -> None:
    connected = "SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'"
    with service.engine() as engine:
        (before,) = engine.execute(connected).fetchone() or (0,)
        async with httpx.AsyncClient(verify=False, timeout=30) as client:  # our own, on this machine
            answers = await asyncio.gather(*(client.get(f"{service.data_url}/health") for _ in range(60)))
        (after,) = engine.execute(connected).fetchone() or (0,)
    assert {response.json()["status"] for response in answers} == {"ok"}
    assert after - before < 30
