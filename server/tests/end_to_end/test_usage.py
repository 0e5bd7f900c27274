"""What is counted and written down: usage by day and database, and who changed what."""

import asyncio
import secrets
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from server.tests import plain_http
from server.tests.end_to_end.control import answer, call, new_key, new_session, query
from server.tests.end_to_end.error_shape import error_of
from server.tests.load import Activity, any_round, new_tag, running_node
from server.tests.service import Service

FLUSH_MS = 500


def used(service: Service, database: str) -> dict[str, Any]:
    """What is written down for a database, over all days."""
    rows = [each for each in answer(service, "GET", "/v1/usage?limit=1000")["usage"] if each["database"] == database]
    return {name: sum(row[name] for row in rows) for name in ("requests", "rows", "engine_us", "bytes")}


def database_of_its_own(service: Service, name: str) -> str:
    answer(service, "POST", "/v1/databases", status=201, json={"name": name})
    return name


async def test_a_clean_shutdown_loses_no_usage(service: Service) -> None:
    name = database_of_its_own(service, "usage-stop")
    key = new_key(service, "write", database=name)["secret"]
    with running_node(service.directory_dsn, usage_flush_ms=3_600_000, drain_ms=0) as node:
        async with node.client(key) as client:
            for number in range(25):
                answered = await client.query("select g as n from generate_series(1, $1) g", number)
                assert answered.succeeded
            assert not (await client.query("select 1 / 0")).succeeded
            await client.query("select pg_sleep(0.2)")
        assert used(service, name)["requests"] == 0, "nothing is written down yet"
        await asyncio.to_thread(node.stop)
    total = used(service, name)
    assert (total["requests"], total["rows"]) == (27, sum(range(25)) + 1)
    assert total["engine_us"] > 200_000
    assert total["bytes"] > total["rows"] * len('{"n":1}') - 27


async def test_requests_without_a_connection_are_not_counted_nor_is_waiting_time(service: Service) -> None:
    name = database_of_its_own(service, "usage-refused")
    key = new_key(service, "write", database=name)["secret"]
    transaction = {"statements": [{"sql": "select 1"}], "timeout_ms": 150}
    settings = {"pool_max_connections": 1, "usage_flush_ms": 3_600_000, "drain_ms": 0}
    with running_node(service.directory_dsn, **settings) as node:
        waiting = [node.client(key) for _ in range(3)]
        async with node.client(key) as busy, node.client(key) as refused, Activity.of(service) as activity:
            assert (await busy.query("select 1")).succeeded
            tag = new_tag()
            await busy.send(f"/* {tag} */ select pg_sleep(3)")
            await activity.begun(tag)
            for each in waiting:
                await each.send("select 1 / 0")
            for _ in range(2):
                assert (await refused.query("select 1", timeout_ms=150)).status in (429, 503)
            await refused.post("/v1/transaction", transaction)
            assert (await refused.answer()).status in (429, 503)
            slept = await busy.answer()
            assert slept.succeeded
            waited_s = [(await each.answer()).elapsed_s for each in waiting]
            for each in waiting:
                each.drop()
        await asyncio.to_thread(node.stop)
    total = used(service, name)
    assert (total["requests"], total["rows"]) == (2 + len(waiting), 2)
    used_s = total["engine_us"] / 1_000_000
    assert 3 < used_s < slept.elapsed_s + sum(waited_s) / 2, "those that failed had waited"


async def test_transactions_keyed_requests_and_streams_are_counted(service: Service) -> None:
    name = database_of_its_own(service, "usage-kinds")
    key = new_key(service, "write", database=name)["secret"]
    steps = {"transaction": (1, 5), "key": (2, 6), "replay": (3, 6), "stream": (4, 1_006)}
    with running_node(service.directory_dsn, usage_flush_ms=20, drain_ms=0) as node:

        def post(path: str, body: dict[str, Any], **headers: str) -> None:
            headers["authorization"] = f"Bearer {key}"
            answered = plain_http.post(f"http://127.0.0.1:{node.port}{path}", json=body, headers=headers)
            assert answered.status_code == 200, answered.text

        series = "select g from generate_series(1, {}) g"
        keyed = {"sql": "select 1 as one"}
        total: dict[str, Any] = {}
        for step, expected in steps.items():
            if step == "transaction":
                sqls = [series.format(2), series.format(3), "select pg_sleep(0.1) limit 0"]
                await asyncio.to_thread(post, "/v1/transaction", {"statements": [{"sql": sql} for sql in sqls]})
            elif step == "stream":
                await asyncio.to_thread(post, "/v1/query", {"sql": series.format(1_000)}, accept="application/x-ndjson")
            else:
                await asyncio.to_thread(lambda: post("/v1/query", keyed, **{"idempotency-key": "usage-kinds"}))
            async with asyncio.timeout(20):
                while (total := await asyncio.to_thread(used, service, name))["requests"] < expected[0]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert (total["requests"], total["rows"]) == expected, step
            assert total["engine_us"] > 0
    assert total["bytes"] > 1_006 * len('{"g":1}')


async def test_a_crash_loses_at_most_one_interval(service: Service) -> None:
    # The machine may stand still just before the crash, while counts are written.
    assert await any_round(lambda: loses_little(service, f"usage-crash-{secrets.token_hex(4)}"))


async def loses_little(service: Service, name: str) -> bool:
    """Whether a node that is killed has counted what it did until an interval before."""
    key = new_key(service, "write", database=database_of_its_own(service, name))["secret"]
    with running_node(service.directory_dsn, usage_flush_ms=FLUSH_MS) as node:
        done: list[float] = []
        async with node.client(key) as client:
            end_s = time.monotonic() + 3
            while time.monotonic() < end_s:
                assert (await client.query("select 1")).succeeded
                done.append(time.monotonic())
        killed_s = time.monotonic()
        node.process.kill()
        node.process.wait()
    kept = used(service, name)["requests"]
    print(f"{len(done)} requests, {len(done) - kept} of them not written down at the crash")
    assert kept <= len(done)
    # The writing itself takes a moment, too.
    return bool(kept >= sum(at_s < killed_s - FLUSH_MS / 1000 - 0.8 for at_s in done) > 0)


async def test_several_nodes_add_up(service: Service) -> None:
    name = database_of_its_own(service, "usage-nodes")
    key = new_key(service, "write", database=name)["secret"]

    async def use(count: int) -> None:
        with running_node(service.directory_dsn, usage_flush_ms=20, drain_ms=0) as node:
            async with node.client(key) as client:
                for _ in range(count):
                    assert (await client.query("select 1")).succeeded
            await asyncio.to_thread(node.stop)

    await asyncio.gather(use(200), use(200))
    assert used(service, name)["requests"] == 400


def test_usage_is_listed_by_day_and_database_in_pages(service: Service) -> None:
    name = database_of_its_own(service, "usage-days")
    with service.engine("plainsql_directory") as directory:
        directory.execute(
            "INSERT INTO usage SELECT d.organization_id, day, d.id, 2, 3, 4, 5 FROM databases d,"
            " unnest('{2020-01-01,2020-01-02,2020-01-04}'::date[]) day WHERE d.name = %s",
            (name,),
        )
    path = "/v1/usage?from=2020-01-01&to=2020-01-03"
    days = answer(service, "GET", path)["usage"]
    assert [day["day"] for day in days] == ["2020-01-01", "2020-01-02"]
    assert {**days[0], "database_id": ""} == {
        "day": "2020-01-01", "database_id": "", "database": name, "requests": 2, "rows": 3, "engine_us": 4, "bytes": 5,
    }  # fmt: skip
    first = answer(service, "GET", f"{path}&limit=1")
    second = answer(service, "GET", f"{path}&limit=1&cursor={first['next']}")
    assert first["usage"] + second["usage"] == days
    assert second["next"] is None


@pytest.mark.parametrize(
    "options",
    [
        "from=x",
        "from=2026-02-30",
        "from=2020-01-01&to=2021-01-02",
        "from=2021-01-01&to=2020-01-01",
        "cursor=eA",
        "to=null",
    ],
)
def test_invalid_days_are_rejected(service: Service, options: str) -> None:
    error_of(call(service, "GET", f"/v1/usage?{options}"), 400, "invalid_option")


@pytest.fixture
def auditor(service: Service) -> str:
    """The key of an administrator in whose organization nothing else happens."""
    name = f"audited-{secrets.token_hex(4)}"
    service.customers.add_organization(name)
    return service.new_key("admin", org=name)


def test_every_change_is_in_the_audit_log_with_who_and_when(service: Service, auditor: str) -> None:
    before = len(entries(service, auditor))
    mine = next(iter(answer(service, "GET", "/v1/keys?limit=1", key=auditor)["keys"]))["id"]
    key = new_key(service, "admin", key=auditor)
    session = new_session(service, key=key["secret"])
    answer(service, "POST", "/v1/session/refresh", key=session["token"])
    database = answer(service, "POST", "/v1/databases", status=201, key=session["token"], json={"name": "audited"})
    path = f"/v1/databases/{database['id']}"
    answer(service, "PATCH", path, key=auditor, json={"name": "audited-too"})
    answer(service, "DELETE", path, key=auditor, status=202)
    answer(service, "POST", f"{path}/restore", key=auditor)
    rotated = answer(service, "POST", f"/v1/keys/{key['id']}/rotate", key=auditor, status=201, json={})["key"]
    answer(service, "DELETE", f"/v1/keys/{rotated['id']}", key=auditor, status=204)
    answer(service, "DELETE", "/v1/session", status=204, key=session["token"])
    answer(service, "PATCH", "/v1/organizations/current", key=auditor, json={"name": f"renamed-{mine}"})
    made = list(reversed(entries(service, auditor)[: -before or None]))
    by_key, by_session, by_me = ("key", key["id"]), ("session", session["id"]), ("key", mine)
    assert [(each["action"], (each["actor"]["kind"], each["actor"]["id"])) for each in made] == [
        ("key.create", by_me), ("session.create", by_key), ("session.refresh", by_session),
        ("database.create", by_session), ("database.finish", by_session), ("database.rename", by_me),
        ("database.delete", by_me), ("database.restore", by_me), ("key.rotate", by_me), ("key.revoke", by_me),
        ("session.end", by_session), ("organization.rename", by_me),
    ]  # fmt: skip
    assert all(each["request_id"].startswith("req_") for each in made)
    assert all(abs((datetime.fromisoformat(each["at"]) - datetime.now(UTC)).total_seconds()) < 60 for each in made)
    assert made[0]["target_id"] == key["id"]


def entries(service: Service, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page = answer(service, "GET", "/v1/audit?limit=1000", key=key)
    found += page["audit"]
    while page["next"]:
        page = answer(service, "GET", f"/v1/audit?limit=1000&cursor={page['next']}", key=key)
        found += page["audit"]
    return found


def test_the_operators_changes_are_in_the_audit_log_too(service: Service, auditor: str) -> None:
    newest = answer(service, "GET", "/v1/audit?limit=1", key=auditor)["audit"][0]
    assert (newest["action"], newest["actor"]) == ("key.create", {"kind": "operator", "id": None})


def test_rejected_changes_are_not_in_the_audit_log(service: Service, auditor: str) -> None:
    before = entries(service, auditor)[0]["id"]
    for method, path, body in (
        ("POST", "/v1/databases", {"name": "Not A Name"}),
        ("POST", "/v1/keys", {"name": "x", "scopes": []}),
        ("DELETE", f"/v1/keys/key_{'0' * 32}", None),
    ):
        assert call(service, method, path, key=auditor, json=body).status_code >= 400
    assert entries(service, auditor)[0]["id"] == before


def test_usage_counts_on_the_running_service(service: Service) -> None:
    name = database_of_its_own(service, "usage-running")
    query(service, service.api_key, "select 1", database=name)
    end_s = time.monotonic() + 20
    while used(service, name)["requests"] != 1:
        assert time.monotonic() < end_s
        time.sleep(0.2)
