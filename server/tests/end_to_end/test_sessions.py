"""Sessions over HTTP: one test per sentence of the specification, and what the contract adds."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.control import answer, call, new_key, new_session, query
from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service

DAY = timedelta(hours=24)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def age(service: Service, session: dict[str, Any], by: timedelta) -> None:
    """Makes a session older: what a clock would do to it."""
    with service.engine("plainsql_directory") as directory:
        directory.execute(
            "UPDATE sessions SET created_at = created_at - %s, expires_at = expires_at - %s WHERE id = %s",
            (by, by, session["id"]),
        )


def wait_until_refused(service: Service, secret: str) -> float:
    began_s = time.monotonic()
    while query(service, secret).status_code == 200:
        assert time.monotonic() - began_s < 5
        time.sleep(0.005)
    error_of(query(service, secret), 401, "unauthenticated")
    return time.monotonic() - began_s


@pytest.fixture(scope="module")
def write_key(service: Service) -> dict[str, Any]:
    return new_key(service, "write")


def test_an_api_key_can_be_exchanged_for_a_session_token(service: Service, write_key: dict[str, Any]) -> None:
    session = new_session(service, key=write_key["secret"])
    assert session["token"].startswith("svc_s_")
    assert session["id"].startswith("ses_")
    assert set(session) == {"id", "token", "expires_at", "created_at", "scopes", "database", "key_id"}
    assert (session["scopes"], session["database"], session["key_id"]) == (["write"], None, write_key["id"])


def test_its_lifetime_is_24_hours(service: Service, write_key: dict[str, Any]) -> None:
    session = new_session(service, key=write_key["secret"])
    assert moment(session["expires_at"]) - moment(session["created_at"]) == DAY
    assert abs(moment(session["created_at"]) - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_session_token_is_presented_as_a_key_is_and_does_the_same(
    service: Service, write_key: dict[str, Any]
) -> None:
    token = new_session(service, key=write_key["secret"])["token"]
    assert query(service, token, "create table if not exists by_session (n int)").json()["success"]
    assert query(service, token, "select 7 as n").json()["rows"] == [{"n": 7}]
    text = service.call("POST", "/query", key=token, content=b"select 1", headers={"Content-Type": "text/plain"})
    assert text.json()["success"]


def test_the_key_may_be_in_the_body_where_there_is_no_header(service: Service, write_key: dict[str, Any]) -> None:
    body = {"api_key": write_key["secret"], "scopes": ["read"]}
    session = answer(service, "POST", "/v1/session", status=201, key=None, json=body)
    assert query(service, session["token"]).json()["success"]
    error_of(call(service, "POST", "/v1/session", key=None, json={"api_key": "svc_k_wrong"}), 401, "unauthenticated")
    error_of(call(service, "POST", "/v1/session", key=None, json={}), 401, "unauthenticated")
    error_of(call(service, "POST", "/v1/session", key=None, content=b"{"), 401, "unauthenticated")


def test_the_key_in_the_body_counts_on_no_other_route(service: Service, write_key: dict[str, Any]) -> None:
    body = {"api_key": service.api_key, "name": "x", "scopes": ["read"]}
    error_of(call(service, "POST", "/v1/keys", key=None, json=body), 401, "unauthenticated")


def test_a_session_may_have_fewer_scopes_than_its_key(service: Service, write_key: dict[str, Any]) -> None:
    session = new_session(service, key=write_key["secret"], scopes=["read"])
    refused = query(service, session["token"], "create table nope ()").json()
    assert refused["error"]["sqlstate"] in ("25006", "42501")
    forbidden = call(service, "POST", "/v1/session", key=write_key["secret"], json={"scopes": ["admin"]})
    error_of(forbidden, 403, "forbidden")
    error_of(call(service, "POST", "/v1/session", key=write_key["secret"], json={"scopes": []}), 400, "no_scopes")


def test_a_session_may_be_bound_to_one_database(service: Service, write_key: dict[str, Any]) -> None:
    second = tenants.second_database(service)
    session = new_session(service, key=write_key["secret"], database=second)
    assert session["database"] == second
    assert query(service, session["token"], database=second).json()["success"]
    error_of(query(service, session["token"], database="main"), 403, "forbidden")
    missing = call(service, "POST", "/v1/session", key=write_key["secret"], json={"database": "nowhere"})
    error_of(missing, 404, "database_not_found")


def test_a_refresh_extends_the_expiry_by_another_24_hours(service: Service, write_key: dict[str, Any]) -> None:
    session = new_session(service, key=write_key["secret"])
    refreshed = answer(service, "POST", "/v1/session/refresh", key=session["token"])
    assert moment(refreshed["expires_at"]) - moment(session["expires_at"]) == DAY
    assert refreshed == {**{name: session[name] for name in refreshed}, "expires_at": refreshed["expires_at"]}
    assert "token" not in refreshed
    assert query(service, session["token"]).json()["success"]


def test_a_destroyed_session_is_refused_within_a_second(service: Service, write_key: dict[str, Any]) -> None:
    session = new_session(service, key=write_key["secret"])
    assert query(service, session["token"]).json()["success"]
    answer(service, "DELETE", "/v1/session", status=204, key=session["token"])
    assert wait_until_refused(service, session["token"]) < 1
    error_of(call(service, "POST", "/v1/session/refresh", key=session["token"]), 401, "unauthenticated")
    assert query(service, write_key["secret"]).json()["success"], "its key lives on"


def test_a_session_is_valid_at_23_59_and_refused_at_24_01(service: Service, write_key: dict[str, Any]) -> None:
    young = new_session(service, key=write_key["secret"])
    old = new_session(service, key=write_key["secret"])
    for session in (young, old):
        assert query(service, session["token"]).json()["success"]
    age(service, young, timedelta(hours=23, minutes=59))
    age(service, old, timedelta(hours=24, minutes=1))
    assert wait_until_refused(service, old["token"]) < 1
    assert query(service, young["token"]).json()["success"]
    error_of(call(service, "POST", "/v1/session/refresh", key=old["token"]), 401, "unauthenticated")


def test_a_refreshed_session_outlives_its_first_24_hours(service: Service, write_key: dict[str, Any]) -> None:
    session = new_session(service, key=write_key["secret"])
    answer(service, "POST", "/v1/session/refresh", key=session["token"])
    age(service, session, timedelta(hours=24, minutes=1))
    assert query(service, session["token"]).json()["success"]


def test_a_session_cannot_create_sessions(service: Service) -> None:
    session = new_session(service)
    error_of(call(service, "POST", "/v1/session", key=session["token"], json={}), 403, "forbidden")


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/session/refresh"), ("DELETE", "/v1/session")])
def test_a_key_is_no_session(service: Service, method: str, path: str) -> None:
    error_of(call(service, method, path), 403, "forbidden")


def test_a_session_with_admin_administers(service: Service) -> None:
    session = new_session(service)
    made = new_key(service, "read", key=session["token"])
    assert query(service, made["secret"]).json()["success"]
    entry = answer(service, "GET", "/v1/audit?limit=1")["audit"][0]
    assert entry["actor"] == {"kind": "session", "id": session["id"]}


def test_revoking_a_key_ends_its_sessions(service: Service) -> None:
    key = new_key(service, "read")
    session = new_session(service, key=key["secret"])
    assert query(service, session["token"]).json()["success"]
    answer(service, "DELETE", f"/v1/keys/{key['id']}", status=204)
    assert wait_until_refused(service, session["token"]) < 1


def test_a_field_that_nobody_knows_is_refused(service: Service) -> None:
    error_of(call(service, "POST", "/v1/session", json={"scope": ["read"]}), 400, "malformed_request")


@pytest.mark.parametrize("token", ["svc_s_", "svc_s_" + "x" * 38])
def test_a_session_token_that_is_none_is_401(service: Service, token: str) -> None:
    response: httpx.Response = service.http.post(
        f"{service.data_url}/v1/query", json={"sql": "select 1"}, headers={"Authorization": f"Bearer {token}"}
    )
    error_of(response, 401, "unauthenticated")
