"""Sessions over HTTP: what the contract adds. The specification's sentences are in test_specification_of_control.py."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from plainsql_server.core.credential import new_session_token
from server.tests.end_to_end import tenants
from server.tests.end_to_end.control import answer, call, new_key, new_session, query
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.session_ages import age, parse_time, wait_until_refused
from server.tests.service import Service


@pytest.fixture(scope="module")
def write_key(service: Service) -> dict[str, Any]:
    return new_key(service, "write")


def test_a_new_session_has_the_fields_of_the_contract(service: Service, write_key: dict[str, Any]) -> None:
    session = new_session(service, key=write_key["secret"])
    assert session["token"].startswith("svc_s_")
    assert session["id"].startswith("ses_")
    assert set(session) == {"id", "token", "expires_at", "created_at", "scopes", "database", "key_id"}
    assert (session["scopes"], session["database"], session["key_id"]) == (["write"], None, write_key["id"])


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


def test_a_refresh_changes_the_expiry_and_nothing_else(service: Service, write_key: dict[str, Any]) -> None:
    session = new_session(service, key=write_key["secret"])
    refreshed = answer(service, "POST", "/v1/session/refresh", key=session["token"])
    assert refreshed == {**{name: session[name] for name in refreshed}, "expires_at": refreshed["expires_at"]}
    assert "token" not in refreshed
    assert query(service, session["token"]).json()["success"]


def test_a_refresh_never_outlasts_a_rotated_key(service: Service) -> None:
    key = new_key(service, "read")
    session = new_session(service, key=key["secret"])
    rotated = answer(service, "POST", f"/v1/keys/{key['id']}/rotate", status=201, json={"overlap_seconds": 3})
    refreshed = answer(service, "POST", "/v1/session/refresh", key=session["token"])
    assert refreshed["expires_at"] == rotated["replaced"]["expires_at"]
    left_s = (parse_time(refreshed["expires_at"]) - datetime.now(UTC)).total_seconds()
    wait_until_refused(service, session["token"], left_s + 10)


def test_a_session_cannot_create_sessions(service: Service) -> None:
    session = new_session(service)
    error_of(call(service, "POST", "/v1/session", key=session["token"], json={}), 403, "forbidden")


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/session/refresh"), ("DELETE", "/v1/session")])
def test_a_key_is_not_accepted_as_a_session_token(service: Service, method: str, path: str) -> None:
    error_of(call(service, method, path), 403, "forbidden")


def test_a_session_with_admin_administers(service: Service) -> None:
    session = new_session(service)
    made = new_key(service, "read", key=session["token"])
    assert query(service, made["secret"]).json()["success"]
    # Others may have changed something meanwhile: databases of earlier tests are dropped when their time has come.
    newest = answer(service, "GET", "/v1/audit?limit=20")["audit"]
    (entry,) = [each for each in newest if each["target_id"] == made["id"]]
    assert entry["actor"] == {"kind": "session", "id": session["id"]}


def test_revoking_a_key_ends_its_sessions(service: Service) -> None:
    key = new_key(service, "read")
    session = new_session(service, key=key["secret"])
    assert query(service, session["token"]).json()["success"]
    answer(service, "DELETE", f"/v1/keys/{key['id']}", status=204)
    wait_until_refused(service, session["token"])


def test_an_unknown_field_is_rejected(service: Service) -> None:
    error_of(call(service, "POST", "/v1/session", json={"scope": ["read"]}), 400, "malformed_request")


@pytest.mark.parametrize("token", ["svc_s_", "svc_s_" + "x" * 38])
def test_an_invalid_session_token_is_401(service: Service, token: str) -> None:
    response: httpx.Response = service.http.post(
        f"{service.data_url}/v1/query", json={"sql": "select 1"}, headers={"Authorization": f"Bearer {token}"}
    )
    error_of(response, 401, "unauthenticated")


def test_an_ended_session_is_answered_with_that(service: Service) -> None:
    token = new_session(service)["token"]
    assert query(service, token).json()["success"]
    answer(service, "DELETE", "/v1/session", status=204, key=token)
    wait_until_refused(service, token)
    for response in (query(service, token), call(service, "POST", "/v1/session/refresh", key=token)):
        error = error_of(response, 401, "unauthenticated")
        assert error["message"] == "This session has ended."
        assert "POST /v1/session" in error["hint"]


def test_a_session_that_ended_with_its_key_is_answered_with_that(service: Service) -> None:
    key = new_key(service, "read")
    used, unused = (new_session(service, key=key["secret"])["token"] for _ in range(2))
    assert query(service, used).json()["success"]
    answer(service, "DELETE", f"/v1/keys/{key['id']}", status=204)
    wait_until_refused(service, used)
    for token in (used, unused):
        assert "with its API key" in error_of(query(service, token), 401, "unauthenticated")["message"]


def test_an_expired_session_is_answered_with_that(service: Service) -> None:
    session = new_session(service)
    age(service, session, timedelta(hours=25))
    wait_until_refused(service, session["token"])
    error = error_of(query(service, session["token"]), 401, "unauthenticated")
    assert ("has expired" in error["message"], "its own server" in error["hint"]) == (True, True)


def test_a_revoked_key_looks_like_a_token_that_never_was(service: Service) -> None:
    key = new_key(service, "read")
    answer(service, "DELETE", f"/v1/keys/{key['id']}", status=204)
    wait_until_refused(service, key["secret"])
    revoked = error_of(query(service, key["secret"]), 401, "unauthenticated")
    assert revoked == error_of(query(service, new_session_token().text), 401, "unauthenticated")
