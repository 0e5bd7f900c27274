"""The clients against the real service: values, results, transactions, streams, errors, the control plane."""

import asyncio
import datetime as dt
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

import plainsql
from client.tests.test_command import run
from plainsql.errors import error_class
from plainsql_server.http.server.errors import STATUS_OF_CLASS, STATUS_OF_CODE
from server.tests.service import Service
from server.tests.test_completeness import all_raised_codes

UTC = dt.UTC
# A million with PLAINSQL_TEST_CLIENT_STREAM_ROWS=1000000.
STREAM_ROWS = int(os.environ.get("PLAINSQL_TEST_CLIENT_STREAM_ROWS", "100000"))


@contextmanager
def table(db: plainsql.Client, columns: str) -> Iterator[str]:
    name = f"t_{uuid4().hex[:12]}"
    db.query(f"create table {name} ({columns})")
    yield name
    db.query(f"drop table {name}")


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("bool", True),
        ("int8", 9_007_199_254_740_993),
        ("numeric", Decimal("12345678901234567890.12345678901234567890")),
        ("numeric", Decimal(5)),
        ("float8", 0.1),
        ("float8", float("inf")),
        ("text", "ä'\"\\ \n☃"),
        ("timestamptz", dt.datetime(2026, 11, 15, 1, 2, 3, 456789, UTC)),
        ("timestamp", dt.datetime(2026, 11, 15, 1, 2, 3)),  # noqa: DTZ001  # the type has no zone
        ("date", dt.date(2026, 11, 15)),
        ("time", dt.time(1, 2, 3)),
        ("timetz", dt.time(1, 2, 3, 4, dt.timezone(dt.timedelta(hours=-3, minutes=-30)))),
        ("interval", dt.timedelta(days=-3, seconds=5, microseconds=7)),
        ("bytea", b"\x00\xff\\"),
        ("bytea", b"AAEC"),
        ("bytea[]", [b"AAEC", b"", b"\x00", None]),
        ("uuid", UUID("dd0ee244-fa0c-4a9d-8110-021df457eaf3")),
        ("jsonb", {"a": [1, 2.5, None], "b": {"c": "d"}}),
        ("int8[]", [1, None, 3]),
        ("numeric[]", [Decimal("1.10"), Decimal(2)]),
        ("timestamptz[]", [dt.datetime(2026, 1, 1, tzinfo=UTC)]),
        ("text", None),
    ],
)
def test_a_value_is_returned_as_it_was_sent(db: plainsql.Client, type_name: str, value: Any) -> None:
    returned = db.query(f"select $1::{type_name} as it", value).value()
    assert (returned, type(returned)) == (value, type(value))


def test_row_values_are_accessible_by_position_and_by_name(db: plainsql.Client) -> None:
    row = db.query("select 1 as a, 'x' as b, 2 as a").one()
    assert (row[0], row["b"], row.b, row["a_1"], row.as_dict()) == (1, "x", "x", 2, {"a": 1, "b": "x", "a_1": 2})
    assert tuple(row) == (1, "x", 2)
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(AttributeError, match="has no column 'c'"):
        _ = row.c


def test_results_become_dictionaries_and_objects(db: plainsql.Client) -> None:
    @dataclass
    class Note:
        id: int
        body: str

    result = db.query("select 1 as id, 'milk' as body")
    assert result.dicts() == [{"id": 1, "body": "milk"}]
    assert result.objects(Note) == [Note(1, "milk")]
    with pytest.raises(plainsql.ResultError, match="Expected one row, got 0"):
        db.query("select 1 where false").one()


def test_results_become_frames_whose_types_are_the_columns(db: plainsql.Client) -> None:
    columns = "1::int8 as i, 1.50::numeric as n, now() as t, 'x'::text as s, array[1] as a, '{}'::jsonb as j"
    columns += ", '03:04:05.6-03:30'::timetz as z, array['03:04+01'::timetz, null] as za"
    full, empty = db.query(f"select {columns}"), db.query(f"select {columns} where false")
    assert full.to_pandas().dtypes.equals(empty.to_pandas().dtypes)
    assert str(full.to_pandas().dtypes["i"]) == "Int64"
    assert full.to_arrow().drop(["n"]).schema == empty.to_arrow().drop(["n"]).schema
    assert full.to_polars().row(0)[:2] == (1, Decimal("1.50"))
    as_text = ("03:04:05.600000-03:30", ["03:04:00+01:00", None])
    assert full.to_polars().row(0)[-2:] == as_text
    assert tuple(full.to_arrow().to_pylist()[0].values())[-2:] == as_text


def test_a_stream_becomes_the_frame_that_a_result_does(db: plainsql.Client) -> None:
    columns = "g::int8 as i, nullif(g, 1)::int4 as m, g * 1.50 as n, 'x' || g as s, '2026-01-01Z'::timestamptz as t"
    for rows in (0, 3):
        sql = f"select {columns} from generate_series(1, {rows}) g"
        result = db.query(sql)
        for name in ("to_pandas", "to_polars", "to_arrow"):
            with db.stream(sql) as stream:
                assert getattr(stream, name)().equals(getattr(result, name)()), name
    with db.stream("select g, g::numeric as n from generate_series(1, 20000) g") as stream:
        frame = stream.to_pandas()
    assert (len(frame), str(frame.dtypes["g"]), frame["n"].sum()) == (20_000, "Int32", Decimal(200_010_000))


async def test_a_stream_becomes_a_frame_with_asyncio(service: Service) -> None:
    async with plainsql.connect_async(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as db:
        result = await db.query("select 1 as i, 2.5 as n")
        for name in ("to_pandas", "to_polars", "to_arrow"):
            async with await db.stream("select 1 as i, 2.5 as n") as stream:
                assert (await getattr(stream, name)()).equals(getattr(result, name)())


def test_a_result_that_the_tier_cuts_is_an_error_and_one_that_the_caller_cuts_is_not(db: plainsql.Client) -> None:
    with pytest.raises(plainsql.ResultError, match=r"use stream\(\)"):
        db.query("select generate_series(1, 100001)")
    cut = db.query("select generate_series(1, 10)", max_rows=3)
    assert (len(cut), cut.truncated) == (3, True)


def test_an_error_carries_postgresqls_diagnosis_and_the_sql(db: plainsql.Client) -> None:
    with pytest.raises(plainsql.StatementError) as caught:
        db.query("select * from nowhere")
    error = caught.value
    assert (error.code, error.sqlstate, error.position, error.sql) == (
        "undefined_table", "42P01", 15, "select * from nowhere",
    )  # fmt: skip
    assert error.outcome == "rolled_back"
    assert error.request_id is not None
    assert error.request_id.startswith("req_")


def test_errors_have_the_service_s_own_classes() -> None:
    of_class = {kind.__name__: status for kind, status in STATUS_OF_CLASS.items()}
    raised = all_raised_codes() | {("InternalError", "service_failure")}
    ours = {(error_class(STATUS_OF_CODE.get(code, of_class[kind]), code, None).__name__, code) for kind, code in raised}
    assert ours == raised


def test_a_transaction_is_atomic_and_can_refer_to_its_own_results(db: plainsql.Client) -> None:
    with table(db, "id bigint generated always as identity, parent bigint, name text") as name:
        with db.transaction() as together:
            parent = together.add(f"insert into {name} (name) values ($1) returning id", "order")
            child = together.add(
                f"insert into {name} (parent, name) values ($1, $2) returning parent", parent.ref("id"), "item",
                expect_affected=1,
            )  # fmt: skip
        assert child.result.value() == parent.result.value()
        failing = db.transaction()
        failing.add(f"delete from {name}")
        failing.add(f"update {name} set name = 'x'", expect_affected=1)
        with pytest.raises(plainsql.StatementError) as caught:
            failing.run()
        assert (caught.value.code, caught.value.statement_index) == ("expectation_failed", 1)
        assert db.query(f"select count(*) from {name}").value() == 2


def test_an_exception_within_the_block_sends_nothing(db: plainsql.Client) -> None:
    with table(db, "id int") as name:
        together = db.transaction()
        with pytest.raises(ZeroDivisionError), together:
            together.add(f"insert into {name} values ($1)", 1 // 0)
        with pytest.raises(ZeroDivisionError), together:
            _ = together.add(f"insert into {name} values (1)").index // 0
        with pytest.raises(plainsql.ResultError):
            _ = together.pending[0].result
        assert db.query(f"select count(*) from {name}").value() == 0


def test_a_block_s_results_say_whether_they_are_a_replay(db: plainsql.Client) -> None:
    key = uuid4().hex
    for is_replayed in (False, True):
        with db.transaction(idempotency_key=key) as together:
            one = together.add("select 1")
            with pytest.raises(plainsql.ResultError, match="hasn't run"):
                _ = together.result
        assert (together.result.replayed, one.result.replayed) == (is_replayed, is_replayed)
        assert (len(together.result), together.result[0] is one.result) == (1, True)


def test_threads_share_a_client(db: plainsql.Client) -> None:
    """Each gets the answers to its own statements, over connections that all of them use again."""

    def ask(thread: int) -> list[int]:
        return [db.query("select $1::int", 100 * thread + each).value() for each in range(20)]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [[100 * thread + each for each in range(20)] for thread in range(8)]


def test_hints_are_neither_about_http_nor_about_one_interface(db: plainsql.Client) -> None:
    with pytest.raises(plainsql.RequestError, match=r"hint: Run one .*, use a transaction\.\n"):
        db.query("select 1; select 2")
    with table(db, "id int") as name:
        db.query(f"insert into {name} values (1)")

        def work(transaction: plainsql.Transaction) -> None:
            transaction.query(f"select random() from {name}")
            transaction.query(f"delete from {name}")

        with pytest.raises(plainsql.StatementError) as caught:
            db.run(work)
        assert (caught.value.code, "digest" in str(caught.value.hint)) == ("volatile_read", False)


def test_the_message_of_an_error_is_short_and_its_text_has_the_rest(db: plainsql.Client) -> None:
    with table(db, "id int primary key") as name:
        with pytest.raises(plainsql.StatementError) as caught:
            db.query(f"insert into {name} values (1), (1)")
        error = caught.value
        assert error.message == f'duplicate key value violates unique constraint "{name}_pkey"'
        text = f"unique_violation: {error.message}\ndetail: Key (id)=(1) already exists.\n"
        assert str(error) == f"{text}request id: {error.request_id}"


def test_the_commit_of_a_block_with_queries_has_its_request_and_its_times(db: plainsql.Client) -> None:
    with table(db, "id int") as name:
        with db.transaction() as together:
            inserted = together.query(f"insert into {name} values (1)")
            with pytest.raises(plainsql.ResultError, match="hasn't run"):
                _ = together.result
        done = together.result
        assert (done.affected_rows, done.attempts, done.results) == (1, 1, [])
        assert done.request_id.startswith("req_")
        assert done.request_id != inserted.request_id
        assert 0 < done.exec_us <= done.total_us

        def delete(transaction: plainsql.Transaction) -> plainsql.Transaction:
            transaction.query(f"delete from {name}")
            return transaction

        assert db.run(delete).result.affected_rows == 1

        async def insert() -> plainsql.TransactionResult:
            async with plainsql.connect_async(db.url, db.settings.key, ca_file=db.settings.ca_file) as client:
                async with client.transaction() as transaction:
                    await transaction.query(f"insert into {name} values (2), (3)")
                return transaction.result

        assert asyncio.run(insert()).affected_rows == 2
        with db.transaction() as reading:
            reading.query("select 1")
        with pytest.raises(plainsql.ResultError, match="no commit"):
            _ = reading.result


def test_the_same_idempotency_key_does_nothing_twice(db: plainsql.Client) -> None:
    with table(db, "id int") as name:
        key = uuid4().hex
        assert db.request_outcome(key) == "not_executed"
        first = db.query(f"insert into {name} values (1) returning id", idempotency_key=key)
        again = db.query(f"insert into {name} values (1) returning id", idempotency_key=key)
        assert (first.replayed, again.replayed, again.rows) == (False, True, first.rows)
        assert db.request_outcome(key) == "committed"
        assert db.query(f"select count(*) from {name}").value() == 1


def test_a_select_that_writes_is_run_once_and_so_is_what_allows_no_transaction(db: plainsql.Client) -> None:
    sequence = f"s_{uuid4().hex[:12]}"
    db.query(f"create sequence {sequence}")
    assert [db.query(f"select nextval('{sequence}')").value() for _ in range(3)] == [1, 2, 3]
    with db.stream(f"select nextval('{sequence}') as it") as rows:
        assert [row.it for row in rows] == [4]
    assert db.query("vacuum").command == "VACUUM"
    db.query(f"drop sequence {sequence}")


def test_a_deadline_ends_a_statement_with_the_outcome_rolled_back(db: plainsql.Client) -> None:
    with pytest.raises(plainsql.LimitError) as caught:
        db.query("select pg_sleep(5)", timeout_s=0.1)
    assert (caught.value.code, caught.value.outcome) == ("statement_timeout", "rolled_back")


def test_a_stream_has_constant_memory_and_its_connection_is_used_again(db: plainsql.Client) -> None:
    with db.stream("select g, repeat('x', 100) as pad from generate_series(1, 60000) g") as rows:
        assert (rows.columns, rows.types) == (("g", "pad"), ("int4", "text"))
        next(rows)
        tracemalloc.start()
        try:
            total = sum(row.g for row in rows)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert list(rows) == []
    assert total == sum(range(2, 60001))
    # A whole result has more than 10 MB.
    assert peak_bytes < 4_000_000
    assert len(db._driver._idle) == 1


@pytest.mark.timeout(max(240, STREAM_ROWS // 5_000))
def test_a_stream_s_memory_does_not_grow_with_its_rows(service: Service) -> None:
    """The memory of a process of its own, as the system counts it; a tenth of the rows fills every buffer."""
    used = {rows: _memory_of_streaming(service, rows) for rows in (STREAM_ROWS // 10, STREAM_ROWS)}
    print(f"resident memory after streaming, in KiB by rows: {used}")
    assert used[STREAM_ROWS] < used[STREAM_ROWS // 10] + 8_000


def _memory_of_streaming(service: Service, rows: int) -> int:
    program = f"""if True:
        import plainsql, re
        sql = "select g, repeat('x', 100) from generate_series(1, {rows}) g"
        with plainsql.connect() as db, db.stream(sql) as rows:
            assert sum(row[0] for row in rows) == {rows * (rows + 1) // 2}
        # What `getrusage` says is at least what the process had that this one was forked from.
        print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    """
    settings = {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
    environment = {**os.environ, **settings, "PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_write_with_a_truncated_result_reports_committed(db: plainsql.Client) -> None:
    with table(db, "id int") as name:
        with pytest.raises(plainsql.ResultError, match="The statement was executed") as caught:
            db.query(f"insert into {name} select generate_series(1, 100001) returning id")
        assert caught.value.outcome == "committed"
        assert db.query(f"select count(*) from {name}").value() == 100_001


def test_a_query_with_the_stream_hint_points_to_stream(db: plainsql.Client) -> None:
    with pytest.raises(plainsql.ResultError, match=r"use stream\(\)"):
        db.query("/*+ STREAM */ select 1")
    with db.stream("/*+ STREAM */ select 1 as one") as rows:
        assert [row.one for row in rows] == [1]


def test_a_stream_that_fails_on_the_way_raises_after_its_rows(db: plainsql.Client) -> None:
    seen: list[int] = []
    with (
        pytest.raises(plainsql.StatementError) as caught,
        db.stream("select 1 / (5000 - g) as it, g from generate_series(1, 9999) g") as rows,
    ):
        seen.extend(row.g for row in rows)
    assert caught.value.code == "division_by_zero"
    assert len(seen) <= 4999


def test_a_stream_that_is_left_early_ends_its_statement(db: plainsql.Client, service: Service) -> None:
    mark = uuid4().hex
    with db.stream(f"select g, pg_sleep(0.01) /* {mark} */ from generate_series(1, 100000) g") as rows:
        next(rows)
    with service.engine() as engine:
        running = (
            "select count(*) from pg_stat_activity where state = 'active' and query like %s and pid <> pg_backend_pid()"
        )
        deadline = dt.datetime.now(UTC) + dt.timedelta(seconds=10)
        while engine.execute(running, [f"%{mark}%"]).fetchone() != (0,):
            assert dt.datetime.now(UTC) < deadline


def test_the_control_plane_is_found_and_its_calls_work(service: Service) -> None:
    with plainsql.connect(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as db:
        made = db.create_key("of the client's test", ["read"])
        assert made.secret is not None
        assert made.id in [key.id for key in db.list_keys()]
        with plainsql.connect(service.data_url, made.secret, ca_file=service.dev["ca_file"]) as reader:
            session = reader.create_session()
            assert (session.scopes, session.key_id) == (["read"], made.id)
            assert reader.query("select 1").value() == 1
            with pytest.raises(plainsql.AccessError):
                list(reader.list_keys())
        db.revoke_key(made.id)
        assert db.organization().tier == "dedicated"
        assert [entry["action"] for entry in db.audit() if entry["target_id"] == made.id] == [
            "key.revoke",
            "key.create",
        ]
        assert "main" in [database.name for database in db.list_databases()]
        assert db.health()["status"] in ("ok", "degraded")


def test_tables_are_listed_with_their_columns(db: plainsql.Client, service: Service) -> None:
    with table(db, "id int primary key, name text") as name:
        found = {each["name"]: each for each in db.tables(detail="columns")}
        assert [column["name"] for column in found[name]["columns"]] == ["id", "name"]
        done = run(service, "tables", "-o", "ndjson")
        assert name in [json.loads(line)["name"] for line in done.stdout.splitlines()]


async def test_the_asyncio_client_does_the_same(service: Service) -> None:
    async with plainsql.connect_async(service.data_url, service.api_key, ca_file=service.dev["ca_file"]) as db:
        assert (await db.query("select $1::numeric", Decimal("1.10"))).value() == Decimal("1.10")
        async with db.transaction() as together:
            pending = together.add("select 5 as five")
        assert pending.result.value() == 5
        async with await db.stream("select g from generate_series(1, 1000) g") as rows:
            assert sum([row.g async for row in rows]) == 500_500
        with pytest.raises(plainsql.StatementError):
            await db.query("select * from nowhere")
        assert [each.name async for each in db.list_databases()][:1] == ["main"]


def test_an_invalid_parameter_is_rejected_before_anything_is_sent(db: plainsql.Client) -> None:
    with pytest.raises(TypeError, match="Unsupported parameter type object"):
        db.query("select $1", object())
    with pytest.raises(TypeError):
        db.query("select $1::jsonb", {"a": Decimal("1.5")})
