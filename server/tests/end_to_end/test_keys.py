"""API keys over HTTP."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.control import answer, call, new_key, query
from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service

FIELDS = {
    "id", "name", "state", "prefix", "last_four", "scopes", "database", "created_at", "last_used_at", "expires_at",
    "revoked_at", "replaces",
}  # fmt: skip


def test_a_new_key_works_at_once_and_its_secret_is_shown_once(service: Service) -> None:
    key = new_key(service, "read", "write", name="web site")
    assert set(key) == FIELDS | {"secret"}
    assert key["secret"].startswith("svc_k_")
    assert (key["prefix"], key["last_four"]) == (key["secret"][:10], key["secret"][-4:])
    assert (key["name"], key["scopes"], key["state"]) == ("web site", ["read", "write"], "active")
    assert query(service, key["secret"]).json()["success"]
    shown = answer(service, "GET", f"/v1/keys/{key['id']}")
    assert set(shown) == FIELDS
    for path in (f"/v1/keys/{key['id']}", "/v1/keys", "/v1/audit"):
        assert key["secret"] not in call(service, "GET", path).text


def test_a_key_may_be_bound_to_a_database_and_expire(service: Service) -> None:
    second = tenants.second_database(service)
    at = datetime.now(UTC) + timedelta(days=1)
    key = new_key(service, "read", database=second, expires_at=at.isoformat())
    assert (key["database"], datetime.fromisoformat(key["expires_at"])) == (second, at)
    error_of(query(service, key["secret"], database="main"), 403, "forbidden")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"scopes": []}, 400, "no_scopes"),
        ({"scopes": ["root"]}, 400, "malformed_request"),
        ({"name": ""}, 400, "invalid_name"),
        ({"name": "a\0b"}, 400, "invalid_name"),
        ({"name": 7}, 400, "malformed_request"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, 400, "invalid_expiry"),
        ({"expires_at": "2999-01-01T00:00:00"}, 400, "invalid_expiry"),
        ({"expires_at": "9999-12-31T23:59:59-12:00"}, 400, "invalid_expiry"),
        ({"expires_at": "tomorrow"}, 400, "malformed_request"),
        ({"database": "nowhere"}, 404, "database_not_found"),
        ({"database": "a\0b"}, 404, "database_not_found"),
        ({"unknown": 1}, 400, "malformed_request"),
    ],
)
def test_an_invalid_key_is_rejected(service: Service, fields: dict[str, Any], status: int, code: str) -> None:
    body = {"name": "test", "scopes": ["read"], **fields}
    error_of(call(service, "POST", "/v1/keys", json=body), status, code)


def test_a_revoked_key_shows_when_and_revoking_again_changes_nothing(service: Service) -> None:
    key = new_key(service, "read")
    for _ in range(2):
        answer(service, "DELETE", f"/v1/keys/{key['id']}", status=204)
    shown = answer(service, "GET", f"/v1/keys/{key['id']}")
    assert shown["state"] == "revoked"
    entries = answer(service, "GET", "/v1/audit?limit=5")["audit"]
    assert [entry["target_id"] for entry in entries if entry["action"] == "key.revoke"].count(key["id"]) == 1


def test_a_rotated_key_works_until_the_overlap_is_over(service: Service) -> None:
    old = new_key(service, "read")
    assert query(service, old["secret"]).json()["success"]
    rotated = answer(service, "POST", f"/v1/keys/{old['id']}/rotate", status=201, json={"overlap_seconds": 2})
    new, replaced = rotated["key"], rotated["replaced"]
    assert (new["replaces"], new["scopes"], new["name"]) == (old["id"], old["scopes"], old["name"])
    assert replaced["id"] == old["id"]
    assert query(service, new["secret"]).json()["success"]
    assert query(service, old["secret"]).json()["success"]
    end_s = time.monotonic() + 30
    while query(service, old["secret"]).status_code == 200 and time.monotonic() < end_s:
        time.sleep(0.05)
    error_of(query(service, old["secret"]), 401, "unauthenticated")
    assert query(service, new["secret"]).json()["success"]


def test_concurrent_rotations_rotate_a_key_once(service: Service) -> None:
    key = new_key(service, "read")
    path = f"/v1/keys/{key['id']}/rotate"
    with ThreadPoolExecutor(6) as pool:
        statuses = [each.status_code for each in pool.map(lambda _: call(service, "POST", path, json={}), range(6))]
    assert sorted(statuses) == [201, 409, 409, 409, 409, 409]


def test_a_revoked_or_expired_key_cannot_be_rotated(service: Service) -> None:
    key = new_key(service, "read")
    answer(service, "DELETE", f"/v1/keys/{key['id']}", status=204)
    error_of(call(service, "POST", f"/v1/keys/{key['id']}/rotate", json={}), 409, "key_not_active")


def test_the_time_of_the_last_use_is_noted(service: Service) -> None:
    key = new_key(service, "read")
    assert key["last_used_at"] is None
    query(service, key["secret"])
    # Before the use is stored.
    answer(service, "DELETE", f"/v1/keys/{key['id']}", status=204)
    end_s = time.monotonic() + 20
    while (shown := answer(service, "GET", f"/v1/keys/{key['id']}"))["last_used_at"] is None:
        assert time.monotonic() < end_s
        time.sleep(0.2)
    times = [datetime.fromisoformat(shown[name]) for name in ("created_at", "last_used_at", "revoked_at")]
    assert times == sorted(times)


def test_the_pages_of_a_list_together_are_complete(service: Service) -> None:
    tenants.free_key(service)
    made = {new_key(service, "read")["id"] for _ in range(5)}
    seen: list[str] = []
    cursor = None
    while True:
        page = answer(service, "GET", "/v1/keys", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        seen += [key["id"] for key in page["keys"]]
        cursor = page["next"]
        if cursor is None:
            break
        assert len(page["keys"]) == 2
    assert made <= set(seen)
    assert seen == sorted(set(seen))
    assert {key["id"] for key in answer(service, "GET", "/v1/keys?limit=1000")["keys"]} == set(seen)


@pytest.mark.parametrize(
    "options",
    ["limit=0", "limit=1001", "limit=x", "cursor=%ff", "cursor=AA", "what=1", "limit=null", "limit=1&limit=2"],
)
def test_an_invalid_page_is_rejected(service: Service, options: str) -> None:
    error_of(call(service, "GET", f"/v1/keys?{options}"), 400, "invalid_option")


@pytest.mark.parametrize("key_id", ["key_1", "key_" + "0" * 32, "db_" + "0" * 32, "x", "%00", "key_%00", "{id}"])
def test_an_unknown_key_is_404(service: Service, key_id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        error_of(call(service, method, f"/v1/keys/{key_id}{path}"), 404, "key_not_found")


def test_an_invalid_scope_is_answered_with_the_valid_ones(service: Service) -> None:
    body = {"name": "k", "scopes": ["read", "reed"]}
    error = error_of(call(service, "POST", "/v1/keys", json=body), 400, "malformed_request")
    assert "valid are read, write and admin" in error["message"]
