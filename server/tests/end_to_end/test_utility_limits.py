"""Where utility routes meet limits of a tier: limits that are made small here, on an application in this process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import msgspec
import psycopg
import pytest

from plainsql_server.assembly import Observer, build_data_application
from plainsql_server.data_plane import reset, service_connections, tables
from plainsql_server.http.server.channel import ResponseChannel
from plainsql_server.http.server.requests import Request
from plainsql_server.limits.tiers import TIERS
from plainsql_server.settings import Settings
from server.tests.end_to_end import control
from server.tests.end_to_end.own_databases import OwnDatabase, new_database
from server.tests.service import Service

TABLES = 250
# Somewhere in the middle, so that some batches come before it and some after it.
HELD = "t_120"

Call = Callable[..., Coroutine[Any, Any, dict[str, Any]]]


@asynccontextmanager
async def application(database: OwnDatabase, **settings: Any) -> AsyncIterator[Call]:
    """Calls to a data plane in this process, for a database; each gives the body of the answer, and its status."""
    dsn = database.service.directory_dsn
    made = build_data_application(Settings(directory_dsn=dsn, **settings), Observer())

    async def call(method: str, path: str, query: str = "", **body: Any) -> dict[str, Any]:
        headers = {b"authorization": f"Bearer {database.key}".encode(), b"x-database": database.name.encode()}
        sent = msgspec.json.encode(body)
        request = Request(method, path, query.encode(), headers, body=sent)
        # There is no connection that would count what the caller holds.
        connection: Any = SimpleNamespace(key_accepted=lambda: None)
        request.channel = ResponseChannel(connection, cast("Any", None), is_chunked=True)
        response = await made.respond(request)
        assert response is not None
        assert isinstance(response.body, bytes)
        answer: dict[str, Any] = msgspec.json.decode(response.body)
        return {"status": response.status, **answer}

    async with made._lifespan() as (made._routes, made._principals, made._permits):
        # The directory's connections are opened meanwhile, which a busy machine takes its time for.
        async with asyncio.timeout(30):
            while (await call("GET", "/tables", "detail=names"))["status"] != 200:
                continue
        yield call


def limit(patch: pytest.MonkeyPatch, module: Any, **limits: int) -> None:
    """The tier `dedicated`, as one module sees it, has other limits."""
    patch.setattr(module, "TIERS", MappingProxyType({**TIERS, "dedicated": replace(TIERS["dedicated"], **limits)}))


@pytest.fixture
def database(service: Service) -> OwnDatabase:
    return new_database(service)


@pytest.fixture
def full(database: OwnDatabase) -> OwnDatabase:
    database.make_tables(TABLES, "id int primary key")
    return database


@contextmanager
def held(database: OwnDatabase, table: str) -> Iterator[psycopg.Connection]:
    """Somebody uses a table for the length of the block, or until the connection rolls back."""
    with database.as_owner() as user:
        user.execute("begin")
        user.execute(f"lock table public.{table} in access share mode".encode())
        yield user
        user.execute("rollback")


def count(database: OwnDatabase) -> int:
    return sum(kind == "relation" and name.startswith("t_") for kind, name in database.objects()) // 2


async def waits_for_a_lock(database: OwnDatabase) -> None:
    await until(database, "select from pg_stat_activity where wait_event_type = 'Lock' and datname = %s")


async def until(database: OwnDatabase, question: str) -> None:
    """Waits until the engine has an answer."""
    with database.service.engine() as engine:
        async with asyncio.timeout(30):
            while engine.execute(question, (database.engine_name,)).rowcount == 0:  # noqa: ASYNC110  # the engine's
                await asyncio.sleep(0.02)


async def test_a_reset_that_times_out_is_continued_by_the_next(
    full: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    life_ms = TIERS["dedicated"].stream_life_ms
    passed_s = 0.0
    async with application(full) as call:
        with monkeypatch.context() as patch, held(full, HELD) as user:
            patch.setattr(reset, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s))
            resetting = asyncio.create_task(call("POST", "/admin/reset", confirm=full.name))
            await waits_for_a_lock(full)
            passed_s = life_ms / 1000
            user.execute("rollback")
            answer = await resetting
        error = answer["error"]
        assert (answer["status"], answer["success"], error["code"]) == (200, False, "reset_timed_out")
        assert (error["outcome"], error["retryable"]) == ("committed", True)
        assert f"{life_ms} ms" in error["message"]
        left = count(full)
        assert 0 < left < TABLES
        again = await call("POST", "/admin/reset", confirm=full.name)
    assert again["dropped"]["tables"] == left
    assert full.objects() == set()


async def test_an_interrupted_reset_reports_that_objects_were_dropped(
    full: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with application(full) as call:
        with monkeypatch.context() as patch, held(full, HELD):
            limit(patch, service_connections, statement_timeout_ms=2_000)
            answer = await call("POST", "/admin/reset", confirm=full.name)
        error = answer["error"]
        assert error["code"] == "statement_timeout"
        # Where its connection had to be cut, nobody knows of the last batch.
        assert error["outcome"] in ("committed", "unknown")
        assert "Send the request again" in error["hint"]
        assert 0 < count(full) < TABLES
        # What is held is in the first batch now: nothing of this request happened.
        with monkeypatch.context() as patch, held(full, HELD):
            limit(patch, service_connections, statement_timeout_ms=500)
            answer = await call("POST", "/admin/reset", confirm=full.name)
            assert answer["error"]["outcome"] in ("rolled_back", "unknown")
        assert (await call("POST", "/admin/reset", confirm=full.name))["success"]
    assert full.objects() == set()


async def test_a_reset_empties_no_other_database_that_gets_its_name_meanwhile(full: OwnDatabase) -> None:
    other = new_database(full.service)
    other.query("create table kept ()")
    async with application(full) as call:
        with held(full, HELD) as user:
            resetting = asyncio.create_task(call("POST", "/admin/reset", confirm=full.name))
            await waits_for_a_lock(full)
            await asyncio.to_thread(rename, full.service, full.name, f"{full.name}-old")
            await asyncio.to_thread(rename, full.service, other.name, full.name)
            async with asyncio.timeout(20):
                seen: list[str] = []
                while seen != ["kept"]:
                    seen = [each["name"] for each in (await call("GET", "/tables", "detail=names"))["tables"]]
            user.execute("rollback")
            answer = await resetting
    assert (answer["status"], answer["error"]["code"], answer["error"]["outcome"]) == (409, "wrong_state", "committed")
    assert ("relation", "kept") in other.objects()


def rename(service: Service, name: str, to: str) -> None:
    with service.engine("plainsql_directory") as directory:
        ((database_id,),) = directory.execute("select id from databases where name = %s", (name,)).fetchall()
    control.answer(service, "PATCH", f"/v1/databases/{database_id}", json={"name": to})


async def test_a_list_of_too_many_tables_is_truncated_and_marked(
    database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.make_tables(5, "id int")
    async with application(database) as call:
        for at_most, names, truncated in ((3, 3, True), (4, 4, True), (5, 5, False), (9, 5, False)):
            limit(monkeypatch, tables, result_rows=at_most)
            answer = await call("GET", "/tables", "detail=names")
            assert ([each["name"] for each in answer["tables"]]) == [f"t_{at}" for at in range(names)]
            assert answer["truncated"] is truncated


async def test_an_answer_with_too_many_bytes_is_refused_with_what_to_do(
    database: OwnDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pieces of some megabytes are not counted, so that it must be more.
    database.make_tables(16, f"body text default repeat(''{'long ' * 100_000}'', 2)")
    limit(monkeypatch, service_connections, result_bytes=1_000_000)
    async with application(database) as call:
        answer = await call("GET", "/tables")
        assert (answer["status"], answer["error"]["code"]) == (200, "result_too_large")
        assert (await call("GET", "/tables", "detail=names"))["success"]


async def test_a_storage_test_without_a_slot_does_not_report_a_storage_failure(database: OwnDatabase) -> None:
    async with application(database, pool_max_connections=1, cell_max_waiting=1) as call:
        sleeping = [asyncio.create_task(call("POST", "/v1/query", sql="select pg_sleep(2)")) for _ in range(2)]
        await until(database, "select from pg_stat_activity where query like 'select pg_sleep%%' and datname = %s")
        answer = await call("GET", "/storage/test")
        assert (answer["status"], answer["error"]["code"]) == (503, "overloaded"), answer
        await asyncio.gather(*sleeping)
        assert (await call("GET", "/storage/test"))["success"]
