"""Databases over HTTP: made, named, deleted, restored, suspended."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.control import answer, call, new_key, query
from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service


@pytest.fixture
def database(service: Service, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A database of the test's own, named after it."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    made: dict[str, Any] = answer(service, "POST", "/v1/databases", status=201, json={"name": name})
    return made


@pytest.fixture(scope="module")
def write_key(service: Service) -> str:
    return str(new_key(service, "write")["secret"])


def path(database: dict[str, Any]) -> str:
    return f"/v1/databases/{database['id']}"


def wait_for_status(service: Service, key: str, name: str, status: int) -> httpx.Response:
    """Asks until the answer has that status."""
    end_s = time.monotonic() + 30
    while (response := query(service, key, database=name)).status_code != status:
        assert time.monotonic() < end_s, response.text
        time.sleep(0.01)
    return response


def wait_for_state(service: Service, database: dict[str, Any], state: str) -> dict[str, Any]:
    end_s = time.monotonic() + 60
    while (shown := answer(service, "GET", path(database)))["state"] != state:
        assert time.monotonic() < end_s, shown
        time.sleep(0.05)
    return dict(shown)


def test_a_new_database_is_ready_and_works(service: Service, database: dict[str, Any], write_key: str) -> None:
    assert set(database) == {
        "id", "name", "state", "default", "created_at", "size_bytes", "restorable_until", "branch_of", "expires_at",
        "urls",
    }  # fmt: skip
    assert (database["state"], database["default"]) == ("ready", False)
    assert database["size_bytes"] > 1_000_000
    assert database["urls"] == {
        "data_url": service.data_url,
        "alias_url": service.dev["alias_url"],
        "control_url": service.control_url,
    }
    assert query(service, write_key, "create table t ()", database=database["name"]).json()["success"]
    assert answer(service, "GET", path(database)) == {**database, "size_bytes": pytest.approx(8_000_000, rel=0.5)}
    assert database["id"] in [each["id"] for each in answer(service, "GET", "/v1/databases?limit=1000")["databases"]]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "main"}, 409, "name_taken"),
        ({"name": "Main"}, 400, "invalid_name"),
        ({"name": "a\0b"}, 400, "invalid_name"),
        ({}, 400, "malformed_request"),
        ({"name": "x", "cell": "y"}, 400, "malformed_request"),
    ],
)
def test_an_invalid_database_is_rejected(service: Service, body: dict[str, Any], status: int, code: str) -> None:
    error_of(call(service, "POST", "/v1/databases", json=body), status, code)


def test_concurrent_creations_use_a_name_once(service: Service) -> None:
    with ThreadPoolExecutor(5) as pool:
        responses = list(
            pool.map(lambda _: call(service, "POST", "/v1/databases", json={"name": "contested"}), range(5))
        )
    made = {each.json()["database"]["id"] for each in responses if each.status_code == 201}
    assert len(made) == 1
    assert {each.status_code for each in responses} <= {201, 409}


def test_a_tier_limits_the_number_of_databases(service: Service) -> None:
    service.customers.add_organization("small", "free")
    key = service.new_key("admin", org="small")
    for number in range(3):
        answer(service, "POST", "/v1/databases", status=201, key=key, json={"name": f"db{number}"})
    error = error_of(call(service, "POST", "/v1/databases", key=key, json={"name": "db3"}), 403, "database_limit")
    assert "free" in error["message"]
    assert "hint" not in error
    first = answer(service, "GET", "/v1/databases?limit=1", key=key)["databases"][0]
    answer(service, "DELETE", path(first), status=202, key=key)
    # A deleted database keeps its slot and its name while it can be restored, and the refusal says how to free them.
    permanently = f"{path(first)}?restorable=false"
    full = error_of(call(service, "POST", "/v1/databases", key=key, json={"name": "db3"}), 403, "database_limit")
    taken = error_of(call(service, "POST", "/v1/databases", key=key, json={"name": "db0"}), 409, "name_taken")
    for error in (full, taken):
        assert "'db0'" in error["hint"]
        assert f"DELETE {permanently}" in error["hint"]
    answer(service, "DELETE", permanently, status=202, key=key)
    end_s = time.monotonic() + 60
    while call(service, "POST", "/v1/databases", key=key, json={"name": "db3"}).status_code == 403:
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_renamed_database_is_found_by_its_new_name_and_no_longer_by_the_old(
    service: Service, database: dict[str, Any], write_key: str
) -> None:
    old, new = database["name"], database["name"] + "-new"
    bound = new_key(service, "read", database=old)["secret"]
    assert query(service, write_key, database=old).json()["success"]
    assert query(service, bound).json()["success"]
    assert answer(service, "PATCH", path(database), json={"name": new})["name"] == new
    wait_for_status(service, write_key, old, 404)
    assert query(service, write_key, database=new).json()["success"]
    assert query(service, bound).json()["success"], "a key stays bound to its database, whatever that is called"
    error_of(call(service, "PATCH", path(database), json={"name": "main"}), 409, "name_taken")


def test_requests_that_name_no_database_go_to_the_new_default(
    service: Service, database: dict[str, Any], write_key: str
) -> None:
    main = next(each for each in answer(service, "GET", "/v1/databases")["databases"] if each["default"])
    query(service, write_key, "create table only_here ()", database=database["name"])
    assert not query(service, write_key, "select from only_here").json()["success"]
    try:
        assert answer(service, "PATCH", path(database), json={"default": True})["default"] is True
        end_s = time.monotonic() + 30
        while not query(service, write_key, "select from only_here").json()["success"]:
            assert time.monotonic() < end_s
        assert answer(service, "GET", path(main))["default"] is False
        own = "/v1/organizations/current"
        assert answer(service, "GET", own, key=write_key)["default_database"] == database["name"]
        bound = new_key(service, "read", database="main")["secret"]
        assert answer(service, "GET", own, key=bound)["default_database"] is None
    finally:
        answer(service, "PATCH", path(main), json={"default": True})
    error_of(call(service, "PATCH", path(main), json={"default": False}), 400, "malformed_request")


def test_a_request_that_changes_two_fields_is_atomic(service: Service, database: dict[str, Any]) -> None:
    error_of(call(service, "PATCH", path(database), json={"name": "main", "default": True}), 409, "name_taken")
    assert answer(service, "GET", path(database))["default"] is False
    both = {"name": f"{database['name']}-both", "default": True}
    changed = answer(service, "PATCH", path(database), json=both)
    assert {name: changed[name] for name in both} == both
    main = next(each for each in answer(service, "GET", "/v1/databases")["databases"] if each["name"] == "main")
    answer(service, "PATCH", path(main), json={"default": True})
    answer(service, "DELETE", path(database), status=202)
    refused = call(service, "PATCH", path(database), json={"name": database["name"], "default": True})
    error_of(refused, 409, "wrong_state")
    assert answer(service, "GET", path(database))["name"] == both["name"]


def test_a_deleted_database_is_rejected_within_a_second_and_can_be_restored_with_its_data(
    service: Service, database: dict[str, Any], write_key: str
) -> None:
    name = database["name"]
    query(service, write_key, "create table kept as select 7 as n", database=name)
    deleting = answer(service, "DELETE", path(database), status=202)
    assert deleting["state"] == "deleting"
    week = datetime.now(UTC) + timedelta(days=7)
    assert abs(datetime.fromisoformat(deleting["restorable_until"]) - week) < timedelta(minutes=1)
    error_of(wait_for_status(service, write_key, name, 404), 404, "database_not_found")
    again = answer(service, "DELETE", path(database), status=202)
    assert again["restorable_until"] == deleting["restorable_until"], "a second time changes nothing"
    error_of(call(service, "POST", "/v1/databases", json={"name": name}), 409, "name_taken")
    restored = answer(service, "POST", f"{path(database)}/restore")
    assert (restored["state"], restored["restorable_until"]) == ("ready", None)
    rows = wait_for_status(service, write_key, name, 200)
    assert rows.json()["success"]
    assert query(service, write_key, "select n from kept", database=name).json()["rows"] == [{"n": 7}]
    error_of(call(service, "POST", f"{path(database)}/restore"), 409, "wrong_state")


def test_a_permanently_deleted_database_is_removed_with_its_keys_and_frees_its_name(
    service: Service, database: dict[str, Any]
) -> None:
    key = new_key(service, "read", database=database["name"])
    deleting = answer(service, "DELETE", f"{path(database)}?restorable=false", status=202)
    assert deleting["restorable_until"] is None
    response = call(service, "POST", f"{path(database)}/restore")
    assert response.status_code in (404, 409)
    wait_for_state(service, database, "deleted")
    assert answer(service, "GET", f"/v1/keys/{key['id']}")["state"] == "revoked"
    error_of(call(service, "DELETE", path(database)), 404, "database_not_found")
    answer(service, "POST", "/v1/databases", status=201, json={"name": database["name"]})


def test_a_deleted_database_can_be_deleted_permanently(service: Service, database: dict[str, Any]) -> None:
    answer(service, "DELETE", path(database), status=202)
    answer(service, "DELETE", f"{path(database)}?restorable=false", status=202)
    wait_for_state(service, database, "deleted")


def test_a_suspended_database_refuses_everything_until_it_is_resumed(
    service: Service, database: dict[str, Any], write_key: str
) -> None:
    name = database["name"]
    assert query(service, write_key, database=name).json()["success"]
    service.operate("database", "suspend", database["id"])
    error_of(wait_for_status(service, write_key, name, 403), 403, "database_suspended")
    answer(service, "DELETE", path(database), status=202)
    assert answer(service, "POST", f"{path(database)}/restore")["state"] == "suspended"
    service.operate("database", "resume", database["id"])
    wait_for_status(service, write_key, name, 200)


def test_another_organizations_database_does_not_exist(service: Service, database: dict[str, Any]) -> None:
    tenants.free_key(service)
    other = service.new_key("admin", org="other")
    for method, suffix in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/restore")):
        json = {"name": "mine"} if method == "PATCH" else None
        response = call(service, method, f"{path(database)}{suffix}", key=other, json=json)
        error_of(response, 404, "database_not_found")
    assert database["id"] not in call(service, "GET", "/v1/databases", key=other).text
