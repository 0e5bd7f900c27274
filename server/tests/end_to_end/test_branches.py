"""Branches over HTTP: made, listed with their parent, expired; and the parent's requests while one is made."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from plainsql_server.limits.tiers import TIERS
from server.tests.end_to_end.control import answer, call, new_key, query
from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service


@pytest.fixture(scope="module")
def key(service: Service) -> str:
    return str(new_key(service, "write")["secret"])


@pytest.fixture
def parent(service: Service, key: str) -> str:
    name = f"p{uuid4().hex[:12]}"
    answer(service, "POST", "/v1/databases", status=201, json={"name": name})
    done(service, key, "create table t (a int)", name)
    done(service, key, "insert into t values (1)", name)
    return name


def done(service: Service, key: str, sql: str, database: str) -> dict[str, Any]:
    body: dict[str, Any] = query(service, key, sql, database=database).json()
    assert body["success"], body
    return body


def branch(service: Service, parent: str, name: str, **fields: Any) -> dict[str, Any]:
    body = {"name": name, "branch_of": parent, **fields}
    made: dict[str, Any] = answer(service, "POST", "/v1/databases", status=201, json=body)
    return made


def test_a_branch_is_a_database_of_its_own_that_knows_its_parent(service: Service, key: str, parent: str) -> None:
    parent_id = answer(service, "GET", f"/v1/databases/{parent}")["id"]
    made = branch(service, parent, f"{parent}-test")
    assert (made["branch_of"], made["expires_at"], made["state"], made["default"]) == (parent_id, None, "ready", False)
    listed = answer(service, "GET", "/v1/databases?limit=1000")["databases"]
    assert {each["name"]: each["branch_of"] for each in listed}[made["name"]] == parent_id
    done(service, key, "insert into t values (2)", made["name"])
    assert done(service, key, "select a from t", parent)["rows"] == [{"a": 1}]
    assert done(service, key, "select a from t order by a", made["name"])["rows"] == [{"a": 1}, {"a": 2}]
    # By its id, too, and of a branch.
    assert branch(service, made["id"], f"{parent}-second")["branch_of"] == made["id"]
    noted = answer(service, "GET", "/v1/audit?limit=5")["audit"]
    made_by = next(each for each in noted if each["target_id"] == made["id"] and each["action"] == "database.create")
    assert made_by["details"]["branch_of"] == parent_id


def test_a_branch_of_a_database_with_code_has_code(service: Service, key: str, parent: str) -> None:
    """What a request leaves behind in its session is undone there as in the parent."""
    done(service, key, "create function f() returns int language sql as 'select 7'", parent)
    made = branch(service, parent, f"{parent}-code")
    assert done(service, key, "select f()", made["name"])["rows"] == [{"f": 7}]
    plain = "SELECT plain FROM databases WHERE id = %s"
    with psycopg.connect(service.directory_dsn) as directory:
        assert directory.execute(plain, (made["id"],)).fetchone() == (False,)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"branch_of": "nowhere"}, 404, "database_not_found"),
        ({"branch_of": "main", "expires_at": "2020-01-01T00:00:00Z"}, 400, "invalid_expiry"),
        ({"branch_of": "main", "expires_at": "2100-01-01T00:00:00"}, 400, "invalid_expiry"),
        ({"expires_at": "2100-01-01T00:00:00Z"}, 400, "malformed_request"),
    ],
)
def test_an_invalid_branch_is_rejected(service: Service, body: dict[str, Any], status: int, code: str) -> None:
    error_of(call(service, "POST", "/v1/databases", json={"name": "invalid", **body}), status, code)
    assert call(service, "GET", "/v1/databases/invalid").status_code == 404


def test_no_one_can_branch_the_database_of_another_organization(service: Service, parent: str) -> None:
    service.customers.add_organization("others")
    other = service.new_key("admin", org="others")
    for named in (parent, answer(service, "GET", f"/v1/databases/{parent}")["id"]):
        body = {"name": "theirs", "branch_of": named}
        error_of(call(service, "POST", "/v1/databases", key=other, json=body), 404, "database_not_found")
    assert answer(service, "GET", "/v1/databases", key=other)["databases"] == []


def test_only_a_key_with_the_scope_admin_can_branch(service: Service, key: str, parent: str) -> None:
    body = {"name": "mine", "branch_of": parent}
    assert call(service, "POST", "/v1/databases", key=key, json=body).status_code == 403
    bound = new_key(service, "admin", database=parent)["secret"]
    assert call(service, "POST", "/v1/databases", key=bound, json=body).status_code == 403


def test_a_branch_counts_in_the_tiers_limit(service: Service) -> None:
    service.customers.add_organization("three", "free")
    admin = service.new_key("admin", org="three")
    answer(service, "POST", "/v1/databases", status=201, key=admin, json={"name": "one"})
    for name in ("two", "three"):
        answer(service, "POST", "/v1/databases", status=201, key=admin, json={"name": name, "branch_of": "one"})
    body = {"name": "four", "branch_of": "one"}
    error_of(call(service, "POST", "/v1/databases", key=admin, json=body), 403, "database_limit")


_MORE_OF_TODAY = """
    INSERT INTO databases (id, organization_id, name, state, engine_name, cell_id, record_secret, branch_of)
    SELECT id || 'x' || i, organization_id, name, 'deleted', engine_name || to_hex(i), cell_id, record_secret, branch_of
    FROM databases, generate_series(2, %s) AS i WHERE id = %s
"""


def test_a_tier_limits_the_branches_of_24_hours_and_deleted_ones_count(service: Service) -> None:
    service.customers.add_organization("daily", "free")
    admin = service.new_key("admin", org="daily")
    answer(service, "POST", "/v1/databases", status=201, key=admin, json={"name": "one"})
    body = {"name": "two", "branch_of": "one"}
    made = answer(service, "POST", "/v1/databases", status=201, key=admin, json=body)
    answer(service, "DELETE", f"/v1/databases/{made['id']}?restorable=false", status=202, key=admin)
    limit = TIERS["free"].branches_per_day
    with psycopg.connect(service.directory_dsn) as directory:
        directory.execute(_MORE_OF_TODAY, (limit, made["id"]))
    body = {"name": "three", "branch_of": "one"}
    refused = call(service, "POST", "/v1/databases", key=admin, json=body)
    error = error_of(refused, 429, "branch_limit")
    assert f"the free tier allows {limit} new branches in 24 hours" in error["message"]
    assert (error["retryable"], "Deleted branches count" in error["hint"]) == (True, True)
    assert 85_000 < int(refused.headers["retry-after"]) <= 86_400
    assert call(service, "GET", "/v1/databases/three", key=admin).status_code == 404
    with psycopg.connect(service.directory_dsn) as directory:
        older = "UPDATE databases SET created_at = created_at - interval '24 h' WHERE id = %s"
        directory.execute(older, (made["id"],))
    answer(service, "POST", "/v1/databases", status=201, key=admin, json=body)


def test_a_suspended_or_deleted_database_cannot_be_branched(service: Service, parent: str) -> None:
    answer(service, "DELETE", f"/v1/databases/{parent}", status=202)
    body = {"name": "late", "branch_of": parent}
    error_of(call(service, "POST", "/v1/databases", json=body), 409, "wrong_state")
    assert call(service, "GET", "/v1/databases/late").status_code == 404


def test_an_expired_branch_is_removed_and_its_name_is_free(service: Service, key: str, parent: str) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=3)
    made = branch(service, parent, f"{parent}-short", expires_at=soon.isoformat())
    assert datetime.fromisoformat(made["expires_at"]) == soon
    end_s = time.monotonic() + 60
    while (shown := answer(service, "GET", f"/v1/databases/{made['id']}"))["state"] != "deleted":
        assert shown["restorable_until"] is None
        assert time.monotonic() < end_s, shown
        time.sleep(0.1)
    assert datetime.now(UTC) >= soon
    assert query(service, key, "select 1", database=made["name"]).status_code == 404
    actions = [each["action"] for each in answer(service, "GET", "/v1/audit?limit=20")["audit"]]
    assert "database.expire" in actions
    assert done(service, key, "select a from t", parent)["rows"] == [{"a": 1}]
    branch(service, parent, made["name"])


def test_requests_to_the_parent_wait_and_none_fails(service: Service, key: str, parent: str) -> None:
    ended = threading.Event()

    def write(number: int) -> tuple[int, float]:
        sent, longest_s = 0, 0.0
        while not ended.is_set():
            began_s = time.monotonic()
            done(service, key, f"insert into t values ({number})", parent)
            sent, longest_s = sent + 1, max(longest_s, time.monotonic() - began_s)
        return sent, longest_s

    def was_held() -> bool:
        """Whether the directory has shown the parent as held."""
        held = False
        with psycopg.connect(service.directory_dsn, autocommit=True) as directory:
            while not ended.is_set():
                found = directory.execute("SELECT held_until > now() FROM databases WHERE name = %s", (parent,))
                held |= found.fetchone() == (True,)
        return held

    with ThreadPoolExecutor(5) as pool:
        writers = [pool.submit(write, 100 + number) for number in range(4)]
        holding = pool.submit(was_held)
        try:
            made = [branch(service, parent, f"{parent}-{number}") for number in range(3)]
        finally:
            ended.set()
        assert holding.result()
        sent = [writer.result() for writer in writers]
    print(f"{sum(count for count, _ in sent)} writes, the longest took {max(longest for _, longest in sent):.2f} s")
    kept = "select count(*) as n from t where a >= 100"
    assert done(service, key, kept, parent)["rows"] == [{"n": sum(count for count, _ in sent)}]
    counts = [done(service, key, kept, each["name"])["rows"][0]["n"] for each in made]
    assert counts == sorted(counts)


def test_an_idempotent_request_is_not_replayed_in_a_branch(service: Service, key: str, parent: str) -> None:
    def insert(database: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "once"}
        body = {"sql": "insert into t values (5)", "database": database}
        response = service.http.post(f"{service.data_url}/v1/query", headers=headers, json=body)
        assert response.json()["success"], response.text
        return dict(response.headers)

    assert "idempotency-replayed" not in insert(parent)
    made = branch(service, parent, f"{parent}-again")
    assert "idempotency-replayed" in insert(parent)
    assert "idempotency-replayed" not in insert(made["name"])
    assert done(service, key, "select count(*) as n from t", made["name"])["rows"] == [{"n": 3}]
