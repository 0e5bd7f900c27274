"""The specification, a test for each sentence of its sections 3, 4 (sessions), 5 and 8: states, routes, keys, limits.

Each test is named after its sentence. 5.1 to 5.3 are in test_specification.py where they are about queries, and 5.5,
which is about browsers, in test_browser.py. The clock of whole processes is in test_session_clock.py.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from plainsql_server.core.credential import new_key as credential_of_nobody
from server.tests.end_to_end.control import answer, call, new_key, new_session, query
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.session_ages import DAY, MINUTE, age, parse_time, wait_until_refused
from server.tests.end_to_end.tenants import neighbour_key
from server.tests.service import Service

SESSION_ROUTES = [("POST", "/v1/session"), ("POST", "/v1/session/refresh"), ("DELETE", "/v1/session")]
RECORD_ROUTES = [("GET", "/v1/databases"), ("GET", "/v1/keys")]


@pytest.fixture(scope="module")
def key(service: Service) -> str:
    return str(new_key(service, "write")["secret"])


@pytest.fixture
def session(service: Service, key: str) -> dict[str, Any]:
    return new_session(service, key=key)


def refresh(service: Service, session: dict[str, Any]) -> dict[str, Any]:
    refreshed: dict[str, Any] = answer(service, "POST", "/v1/session/refresh", key=session["token"])
    return refreshed


def through_alias(service: Service, method: str, path: str, key: str, **arguments: Any) -> httpx.Response:
    url = f"{service.dev['alias_url']}{path}"
    return service.http.request(method, url, headers={"Authorization": f"Bearer {key}"}, **arguments)


# Section 3: states and transitions.


def test_3_from_none_by_post_v1_session_if_a_valid_api_key_is_supplied_to_active(service: Service, key: str) -> None:
    made = new_session(service, key=key)
    assert query(service, made["token"]).json()["success"]
    for invalid in (None, "svc_k_x", credential_of_nobody().text):
        error_of(call(service, "POST", "/v1/session", key=invalid, json={}), 401, "unauthenticated")


def test_3_a_token_is_issued_it_expires_after_24_hours(session: dict[str, Any]) -> None:
    assert session["token"].startswith("svc_s_")
    assert parse_time(session["expires_at"]) - parse_time(session["created_at"]) == DAY
    assert abs(parse_time(session["created_at"]) - datetime.now(UTC)) < MINUTE


def test_3_from_active_by_post_v1_session_refresh_to_active(service: Service, session: dict[str, Any]) -> None:
    assert refresh(service, session)["id"] == session["id"]
    assert query(service, session["token"]).json()["success"]


def test_3_expiry_is_extended_by_another_24_hours(service: Service, session: dict[str, Any]) -> None:
    assert parse_time(refresh(service, session)["expires_at"]) - parse_time(session["expires_at"]) == DAY
    age(service, session, DAY + MINUTE)
    assert query(service, session["token"]).json()["success"]
    age(service, session, DAY)
    wait_until_refused(service, session["token"])


def test_3_from_active_by_delete_v1_session_to_destroyed_this_is_the_logout(
    service: Service, session: dict[str, Any], key: str
) -> None:
    assert query(service, session["token"]).json()["success"]
    answer(service, "DELETE", "/v1/session", status=204, key=session["token"])
    wait_until_refused(service, session["token"])
    for method, path in SESSION_ROUTES:
        error_of(call(service, method, path, key=session["token"]), 401, "unauthenticated")
    assert query(service, key).json()["success"], "its key lives on"


def test_3_from_active_when_24_hours_pass_and_no_refresh_happened_to_expired(service: Service, key: str) -> None:
    young, old = new_session(service, key=key), new_session(service, key=key)
    for each in (young, old):
        assert query(service, each["token"]).json()["success"]
    age(service, young, DAY - MINUTE)
    age(service, old, DAY + MINUTE)
    wait_until_refused(service, old["token"])
    assert query(service, young["token"]).json()["success"]
    error_of(call(service, "POST", "/v1/session/refresh", key=old["token"]), 401, "unauthenticated")


# Section 4: endpoints, those of sessions, and what it says about databases and keys.


def test_4_all_request_and_response_bodies_are_json_on_the_control_plane_too(service: Service, key: str) -> None:
    for response in (
        call(service, "POST", "/v1/session", key=key, json={}),
        call(service, "POST", "/v1/session", key=None),
        call(service, "GET", "/v1/keys"),
        call(service, "GET", "/v1/databases"),
        call(service, "GET", "/nope"),
    ):
        assert response.headers["content-type"] == "application/json"
        assert isinstance(response.json(), dict)
    error_of(call(service, "POST", "/v1/session", key=key, content=b"scopes=read"), 400, "malformed_request")


@pytest.mark.parametrize(("method", "path"), SESSION_ROUTES)
def test_4_session_routes_are_on_the_control_plane_host_control_url(service: Service, method: str, path: str) -> None:
    listed = service.http.get(f"{service.control_url}/").json()["routes"]
    assert (method, path) in {(route["method"], route["path"]) for route in listed}
    error_of(service.call(method, path), 404, "route_not_found")


def test_4_post_v1_session_exchange_an_api_key_for_a_session_token(service: Service, key: str) -> None:
    token = new_session(service, key=key)["token"]
    assert token not in ("", key)
    assert query(service, token, "select 7 as n").json()["rows"] == [{"n": 7}]


def test_4_post_v1_session_refresh_extend_the_session_expiry_by_another_24_hours(
    service: Service, session: dict[str, Any]
) -> None:
    assert parse_time(refresh(service, session)["expires_at"]) - parse_time(session["expires_at"]) == DAY


def test_4_delete_v1_session_destroy_the_session(service: Service, session: dict[str, Any]) -> None:
    answer(service, "DELETE", "/v1/session", status=204, key=session["token"])
    wait_until_refused(service, session["token"])


@pytest.mark.parametrize(("method", "path"), RECORD_ROUTES)
def test_4_routes_for_databases_and_api_keys_exist_on_the_control_plane(
    service: Service, method: str, path: str
) -> None:
    assert call(service, method, path).json()["success"]
    error_of(service.call(method, path), 404, "route_not_found")


def test_4_the_same_routes_are_also_reachable_on_alias_url(service: Service, key: str) -> None:
    assert through_alias(service, "POST", "/v1/query", key, json={"sql": "select 1"}).json()["success"]
    assert through_alias(service, "POST", "/v1/transaction", key, json={"statements": ["select 1"]}).json()["success"]
    text = service.http.post(
        f"{service.dev['alias_url']}/query", content=b"select 1",
        headers={"Authorization": f"Bearer {key}", "Content-Type": "text/plain"},
    )  # fmt: skip
    assert text.json()["success"]


# Section 5: authentication.


@pytest.mark.parametrize(("method", "path"), [*SESSION_ROUTES, *RECORD_ROUTES])
def test_5_1_every_request_carries_the_header_authorization_with_the_value_bearer_api_key(
    service: Service, method: str, path: str
) -> None:
    assert call(service, method, path).status_code != 401
    url = f"{service.control_url}{path}"
    for header in ({}, {"Authorization": service.api_key}, {"Authorization": f"Basic {service.api_key}"}):
        error_of(service.http.request(method, url, headers=header), 401, "unauthenticated")


def test_5_2_api_keys_start_with_the_fixed_prefix_svc_k_followed_by_the_key_body(service: Service) -> None:
    made = new_key(service, "read")["secret"]
    assert made.startswith("svc_k_")
    assert query(service, made).json()["success"]
    error_of(query(service, made.removeprefix("svc_k_")), 401, "unauthenticated")
    error_of(query(service, "svc_k_"), 401, "unauthenticated")


@pytest.mark.parametrize(("method", "path"), [*SESSION_ROUTES, *RECORD_ROUTES])
@pytest.mark.parametrize("invalid", [None, "x", "svc_k_x", "svc_s_x"])
def test_5_3_a_missing_or_invalid_key_gives_status_401(
    service: Service, method: str, path: str, invalid: str | None
) -> None:
    error_of(call(service, method, path, key=invalid), 401, "unauthenticated")


def test_5_4_an_api_key_can_be_exchanged_for_a_session_token_by_post_v1_session(service: Service, key: str) -> None:
    made = new_session(service, key=key)
    assert query(service, made["token"]).json()["success"]
    error_of(call(service, "POST", "/v1/session", key=made["token"], json={}), 403, "forbidden")


def test_5_4_the_session_lasts_24_hours_and_can_be_refreshed_or_destroyed(
    service: Service, session: dict[str, Any]
) -> None:
    assert parse_time(session["expires_at"]) - parse_time(session["created_at"]) == DAY
    assert parse_time(refresh(service, session)["expires_at"]) - parse_time(session["created_at"]) == 2 * DAY
    answer(service, "DELETE", "/v1/session", status=204, key=session["token"])
    wait_until_refused(service, session["token"])


@pytest.mark.parametrize(("method", "path"), [*SESSION_ROUTES, *RECORD_ROUTES])
def test_5_5_when_these_routes_are_called_through_alias_url_the_alias_answers_with_a_redirect(
    service: Service, method: str, path: str
) -> None:
    redirect = through_alias(service, method, path, service.api_key)
    error_of(redirect, 308, "control_route")
    assert redirect.headers["location"] == f"{service.control_url}{path}"


# Section 8: limits.


@pytest.fixture(scope="module")
def free(service: Service) -> list[str]:
    """Two keys of a fresh organization of the free tier."""
    name = f"spec-{time.monotonic_ns()}"
    service.customers.add_organization(name, "free")
    service.customers.add_database("main", name)
    return [service.new_key("write", org=name) for _ in range(2)]


def test_8_request_rate_free_tier_200_requests_per_minute_per_organization(service: Service, free: list[str]) -> None:
    statuses = [query(service, free[number % 2]).status_code for number in range(201)]
    assert statuses == [200] * 200 + [429]
    refused = query(service, free[0])
    assert refused.headers["ratelimit-policy"] == '"org-free";q=200;w=60'
    assert query(service, neighbour_key(service)).status_code == 200, "another organization has a rate of its own"


def test_8_applies_to_requests_to_the_service_excess_gets_429(service: Service, free: list[str]) -> None:
    while query(service, free[0]).status_code == 200:
        pass
    error_of(query(service, free[0]), 429, "rate_limited")
    error_of(call(service, "POST", "/v1/session", key=free[1], json={}), 429, "rate_limited")
    through = through_alias(service, "POST", "/v1/transaction", free[1], json={"statements": ["select 1"]})
    error_of(through, 429, "rate_limited")


def test_8_session_lifetime_24_hours_extended_by_24_hours_on_each_refresh(
    service: Service, session: dict[str, Any]
) -> None:
    ends = [session, refresh(service, session), refresh(service, session)]
    lives = [parse_time(each["expires_at"]) - parse_time(session["created_at"]) for each in ends]
    assert lives == [timedelta(hours=24), timedelta(hours=48), timedelta(hours=72)]
