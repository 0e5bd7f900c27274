"""Idempotency-Key and GET /v1/requests/{id}: executed once, replayed, and never in doubt."""

import re
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.transactions import Sent, fresh_table, numbers, post, with_params
from server.tests.load import new_request_id
from server.tests.service import Service

Send = Callable[[Service, str, dict[str, str]], httpx.Response]
ROUTES: dict[str, Send] = {
    "/v1/query": lambda service, sql, headers: service.call("POST", "/v1/query", json={"sql": sql}, headers=headers),
    "/query": lambda service, sql, headers: service.call(
        "POST", "/query", content=sql.encode(), headers={"Content-Type": "text/plain", **headers}
    ),
    "/v1/transaction": lambda service, sql, headers: post(service, sql, "select 1", headers=headers),
}


def new_key() -> str:
    return f"key-{secrets.token_hex(8)}"


def keyed(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


def outcome_of(service: Service, wanted: str, **arguments: Any) -> dict[str, Any]:
    response = service.call("GET", f"/v1/requests/{quote(wanted, safe='')}", **arguments)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["success"]
    assert answer["request"].pop("id") == wanted
    found: dict[str, Any] = answer["request"]
    return found


@pytest.mark.parametrize("route", ROUTES)
def test_a_repeated_request_is_not_executed_again(service: Service, route: str) -> None:
    table = fresh_table(service, "n serial")
    key, sql = new_key(), f"insert into {table} default values returning n"
    first = ROUTES[route](service, sql, keyed(key))
    assert first.json()["success"]
    assert "idempotency-replayed" not in first.headers
    for _ in range(3):
        again = ROUTES[route](service, sql, keyed(key))
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["content-type"] == first.headers["content-type"]
    assert numbers(service, table) == [1]
    ROUTES[route](service, sql, {})
    ROUTES[route](service, sql, keyed(new_key()))
    assert len(numbers(service, table)) == 3


def test_a_replay_returns_the_recorded_answer_not_the_current_state(service: Service) -> None:
    table, key = fresh_table(service), new_key()
    first = ROUTES["/v1/query"](service, f"select count(*) from {table}", keyed(key))
    service.query(f"insert into {table} values (1)")
    assert ROUTES["/v1/query"](service, f"select count(*) from {table}", keyed(key)).content == first.content


def test_an_idempotency_key_identifies_one_request(service: Service) -> None:
    table, key = fresh_table(service, "n serial"), new_key()
    sql = f"insert into {table} default values"
    assert ROUTES["/v1/query"](service, sql, keyed(key)).json()["success"]
    others = [
        ROUTES["/v1/query"](service, sql + " ", keyed(key)),
        ROUTES["/query"](service, sql, keyed(key)),
        ROUTES["/v1/transaction"](service, sql, keyed(key)),
        service.call("POST", "/v1/query", json={"sql": sql, "max_rows": 1}, headers=keyed(key)),
    ]
    for response in others:
        error = error_of(response, 422, "idempotency_key_reused")
        assert (error["outcome"], error["retryable"]) == ("not_executed", False)
    assert numbers(service, table) == [1]
    text = {"Content-Type": "text/plain", **keyed(new_key())}
    assert service.call("POST", "/query", content=sql, headers=text).json()["success"]
    error_of(service.call("POST", "/query?max_rows=5", content=sql, headers=text), 422, "idempotency_key_reused")


def test_a_repeated_request_that_is_still_running_is_rejected_at_once(service: Service) -> None:
    table, key, request_id = fresh_table(service), new_key(), new_request_id()
    held = fresh_table(service)
    statements = (f"insert into {table} values (1)", f"select count(*) from {held}")
    with ThreadPoolExecutor(1) as client, service.engine() as holder:
        holder.execute("begin")
        holder.execute(f"lock table {held}")
        first = client.submit(
            post, service, *statements, idempotency_key=key, headers={"X-Request-Id": request_id}
        )  # fmt: skip
        end_s = time.monotonic() + 20
        while outcome_of(service, key)["outcome"] != "in_progress":
            assert time.monotonic() < end_s
        assert outcome_of(service, request_id) == {"outcome": "in_progress"}
        error = error_of(post(service, *statements, idempotency_key=key), 409, "request_in_progress")
        # Another body gets the same answer: what the key stands for is not decided yet.
        error_of(post(service, "select 1", idempotency_key=key), 409, "request_in_progress")
        assert not first.done()
        holder.execute("rollback")
        assert (error["outcome"], error["retryable"]) == ("not_executed", True)
        assert error["retry_after_ms"] > 0
        assert first.result().json()["success"]
    assert post(service, *statements, idempotency_key=key).content == first.result().content
    assert outcome_of(service, request_id)["outcome"] == outcome_of(service, key)["outcome"] == "committed"
    assert numbers(service, table) == [1]


def test_concurrent_lookups_do_not_mistake_each_other_for_the_request(service: Service) -> None:
    for key in (new_key(), new_request_id()):
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda _, key=key: service.call("GET", f"/v1/requests/{key}"), range(200)))
        # Nothing is known of an id, and a key was not used.
        found = {answer.json()["request"]["outcome"] for answer in answers if answer.status_code == 200}
        assert found <= {"not_executed"}
        assert {answer.status_code for answer in answers} <= {200, 404}


def test_a_deadline_during_the_claim_of_a_key_is_reported_as_one(service: Service) -> None:
    with service.engine(service.dev["postgres"]["database"]) as engine, engine.transaction():
        engine.execute("LOCK TABLE plainsql.requests")
        body = {"sql": "select 1", "timeout_ms": 300}
        response = service.call("POST", "/v1/query", json=body, headers=keyed(new_key()))
    assert error_of(response, 200, "transaction_deadline_exceeded")["outcome"] == "rolled_back"


@pytest.mark.parametrize("key", [b"", b"a b", b"a" * 256, "ä".encode(), b"a\tb", b"a,b c"])
def test_an_invalid_key_is_rejected(service: Service, key: bytes) -> None:
    table = fresh_table(service)
    headers: Any = {"Idempotency-Key": key, "Content-Type": "application/json"}
    body = b'{"sql": "insert into %b values (1)"}' % table.encode()
    response = service.http.post(
        f"{service.data_url}/v1/query", content=body, headers={b"Authorization": f"Bearer {service.api_key}", **headers}
    )
    assert error_of(response, 400, "invalid_idempotency_key")["outcome"] == "not_executed"
    assert numbers(service, table) == []


@pytest.mark.parametrize("key", ["k", "a" * 255, "a/b", "/", "%2F", "?b=c#d", "~!@$^&*()[]{}|\\:;'<>,.\"`", "%00"])
def test_an_idempotency_key_may_be_any_visible_text_and_can_be_looked_up(service: Service, key: str) -> None:
    key = key if len(key) > 200 else key + new_key()
    assert outcome_of(service, key) == {"outcome": "not_executed"}
    assert post(service, "select 1", idempotency_key=key).json()["success"]
    assert outcome_of(service, key)["outcome"] == "committed"


def test_a_request_that_failed_does_not_use_its_key_up(service: Service) -> None:
    table, key = fresh_table(service), new_key()
    service.query(f"insert into {table} values (1)")
    for statements in ([f"insert into {table} values (1)"], ["select 1", "selec"], ["select 1 / 0"]):
        assert not post(service, *statements, idempotency_key=key).json()["success"]
        assert outcome_of(service, key) == {"outcome": "not_executed"}
    response = post(service, f"insert into {table} values (2)", idempotency_key=key)
    assert response.json()["success"]
    assert "idempotency-replayed" not in response.headers
    assert numbers(service, table) == [1, 2]


def age(service: Service, key: str, how_old: str) -> None:
    with service.engine() as engine:
        changed = engine.execute(
            "update plainsql.requests set claimed_at = now() - %s::interval where key = %s", (how_old, key)
        )
        assert changed.rowcount == 1


def test_a_record_is_kept_for_a_day_and_no_longer(service: Service) -> None:
    table, key, request_id = fresh_table(service, "n serial"), new_key(), new_request_id()
    sql = f"insert into {table} default values returning n"
    first = post(service, sql, idempotency_key=key, headers={"X-Request-Id": request_id})
    age(service, key, "23 hours 59 minutes")
    assert post(service, sql, idempotency_key=key).content == first.content
    age(service, key, "24 hours 1 second")
    assert outcome_of(service, key) == {"outcome": "not_executed"}
    error_of(service.call("GET", f"/v1/requests/{request_id}"), 404, "request_not_found")
    anew = post(service, f"{sql} ", idempotency_key=key)
    assert anew.json()["results"][0]["rows"] == [{"n": 2}]
    assert "idempotency-replayed" not in anew.headers
    assert outcome_of(service, key)["outcome"] == "committed"


def test_old_records_are_removed_however_many_there_are(service: Service) -> None:
    table, key = fresh_table(service, "n serial"), new_key()
    sql = f"insert into {table} default values"
    post(service, sql, idempotency_key=key)
    with service.engine() as engine:
        engine.execute(
            "insert into plainsql.requests select 'old-' || g, 'req_old', '', now() - interval '25 hours'"
            " from generate_series(1, 2500) g"
        )
        engine.execute("insert into plainsql.responses select key, '' from plainsql.requests where key like 'old-%'")
        age(service, key, "25 hours")
        assert post(service, sql, idempotency_key=key).json()["success"]
        (left,) = engine.execute("select count(*) from plainsql.requests where key like 'old-%'").fetchone() or (0,)
        (orphans,) = engine.execute(
            "select count(*) from plainsql.responses s where not exists"
            " (select from plainsql.requests r where r.key = s.key)"
        ).fetchone() or (0,)
    assert left == 0
    assert orphans == 0
    assert numbers(service, table) == [1, 2]


def test_read_only_requests_are_not_recorded(service: Service) -> None:
    key = new_key()
    table = fresh_table(service)
    for number in range(2):
        response = post(service, f"select count(*)::int as c from {table}", idempotency_key=key, read_only=True)
        assert response.json()["results"][0]["rows"] == [{"c": number}]
        assert "idempotency-replayed" not in response.headers
        service.query(f"insert into {table} values ({number})")
    assert outcome_of(service, key) == {"outcome": "not_executed"}
    reader = tenants.read_key(service)
    assert post(service, "select 1", idempotency_key=key, key=reader).json()["success"]
    assert outcome_of(service, key, key=reader) == {"outcome": "not_executed"}


def test_keys_belong_to_a_database(service: Service) -> None:
    other, key = tenants.second_database(service), new_key()
    sql = "select current_database()::text as d"
    here = post(service, sql, idempotency_key=key).json()["results"][0]["rows"]
    assert outcome_of(service, key, headers={"X-Database": other}) == {"outcome": "not_executed"}
    there = post(service, sql, idempotency_key=key, headers={"X-Database": other}).json()["results"][0]["rows"]
    assert here != there
    assert outcome_of(service, key, headers={"X-Database": other})["outcome"] == "committed"


def test_keys_and_ids_of_another_organization_are_unknown(service: Service) -> None:
    outsider, key, request_id = tenants.free_key(service), new_key(), new_request_id()
    post(service, "select 1", idempotency_key=key, headers={"X-Request-Id": request_id})
    assert outcome_of(service, key, key=outsider) == {"outcome": "not_executed"}
    error_of(service.call("GET", f"/v1/requests/{request_id}", key=outsider), 404, "request_not_found")
    response = post(service, "select 2", idempotency_key=key, key=outsider)
    assert response.json()["results"][0]["rows"] == [{"?column?": 2}]


def test_an_answer_that_is_too_large_to_keep_rolls_back(service: Service) -> None:
    table, key = fresh_table(service), new_key()
    insert = f"insert into {table} values (1)"
    large = "select repeat('x', 1000) from generate_series(1, 1100)"
    error = error_of(post(service, insert, large, idempotency_key=key), 200, "result_too_large")
    assert (error["outcome"], numbers(service, table)) == ("rolled_back", [])
    assert outcome_of(service, key) == {"outcome": "not_executed"}
    assert post(service, insert, idempotency_key=key).json()["success"]


def test_an_answer_too_large_for_the_tier_rolls_back_too(service: Service) -> None:
    outsider, key = tenants.free_key(service), new_key()
    post(service, "create table if not exists sized (n int)", "truncate sized", key=outsider)
    for size_bytes in (12_000_000, 60_000_000):
        large = f"select repeat('x', {size_bytes})"
        error = error_of(
            post(service, "insert into sized values (1)", large, idempotency_key=key, key=outsider),
            200,
            "result_too_large",
        )
        there = post(service, "select * from sized", key=outsider).json()["results"][0]["row_count"]
        assert (error["outcome"], there) == ("rolled_back", 0)


def test_a_request_can_be_looked_up_by_its_id_and_its_key(service: Service) -> None:
    key, request_id = new_key(), new_request_id()
    post(service, "select 1", idempotency_key=key, headers={"X-Request-Id": request_id})
    by_key, by_id = outcome_of(service, key), outcome_of(service, request_id)
    assert by_key == by_id
    assert by_key["outcome"] == "committed"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", by_key["finished_at"])
    assert outcome_of(service, key, key=tenants.read_key(service)) == by_key
    error_of(service.call("GET", f"/v1/requests/{new_request_id()}"), 404, "request_not_found")
    error_of(service.call("GET", f"/v1/requests/{key}", key=None), 401, "unauthenticated")
    error_of(service.call("POST", f"/v1/requests/{key}"), 405, "method_not_allowed")
    for path in (
        "/v1/requests/",
        "/v1/requests",
        "/v1/requests/a%00b",
        "/v1/requests/%ff",
        f"/v1/requests/{'a' * 256}",
    ):
        assert service.call("GET", path).status_code == 404, path


def test_a_request_without_a_key_is_not_recorded(service: Service) -> None:
    request_id = new_request_id()
    assert post(service, "select 1", headers={"X-Request-Id": request_id}).json()["success"]
    error_of(service.call("GET", f"/v1/requests/{request_id}"), 404, "request_not_found")


def test_a_key_works_with_parameters_references_and_expectations(service: Service) -> None:
    table, key = fresh_table(service, "n serial"), new_key()
    statements: list[Sent] = [
        f"insert into {table} default values returning n",
        with_params(f"update {table} set n = n + 10 where n = $1", {"$ref": "0.rows.0.n"}, expect={"affected_rows": 1}),
    ]
    first = post(service, *statements, idempotency_key=key)
    assert first.json()["success"]
    assert post(service, *statements, idempotency_key=key).content == first.content
    assert numbers(service, table) == [11]


def test_a_database_without_record_tables_is_reported(service: Service) -> None:
    service.customers.add_database("ancient")
    with service.engine() as engine:
        name = service.value("select current_database()::text", database="ancient")
        with psycopg.connect(engine.info.dsn, dbname=name, autocommit=True) as ancient:
            ancient.execute("drop schema plainsql cascade")
    error_of(post(service, "select 1", idempotency_key=new_key(), database="ancient"), 400, "idempotency_unavailable")
