"""Streams as their readers see them: forms, triggers, ends and errors."""

import csv
import io
import json
import re
import time
from typing import Any

import httpx
import pytest

from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.tenants import free_key, read_key
from server.tests.events import Event, EventParser
from server.tests.service import Service

SSE, NDJSON, CSV = "text/event-stream", "application/x-ndjson", "text/csv"
HINT = "/*+ STREAM */"


def ask(service: Service, sql: str, accept: str = SSE, *, key: str = "", **fields: Any) -> httpx.Response:
    return service.call("POST", "/v1/query", key=key, headers={"Accept": accept}, json={"sql": sql, **fields})


def events_of(response: httpx.Response) -> list[Event]:
    assert response.headers["content-type"].startswith(SSE), response.text
    return EventParser().feed(response.content)


def rows_of(events: list[Event]) -> list[Any]:
    """The rows of a well-formed stream."""
    kinds = [event.type for event in events]
    assert kinds[0] == "columns"
    assert kinds[-1] in ("done", "error")
    assert set(kinds[1:-1]) <= {"row"}
    return [event.content for event in events[1:-1]]


def stream(service: Service, sql: str, **fields: Any) -> tuple[list[Any], Event]:
    events = events_of(ask(service, sql, **fields))
    return rows_of(events), events[-1]


def test_events_are_columns_rows_and_done(service: Service) -> None:
    response = ask(service, "select n, 'x' || n as text from generate_series(1, 3) n")
    events = events_of(response)
    assert rows_of(events) == [{"n": n, "text": f"x{n}"} for n in (1, 2, 3)]
    assert events[0].content == {
        "columns": ["n", "text"], "types": ["int4", "text"], "request_id": response.headers["x-request-id"],
    }  # fmt: skip
    done = events[-1].content
    assert done.pop("timings").keys() == {"total_us", "exec_us"}
    assert done == {"row_count": 3, "affected_rows": 0, "truncated": False, "command": "SELECT"}
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    assert "engine;dur=" in response.headers["server-timing"]


@pytest.mark.parametrize("path", ["/v1/query", "/query"])
@pytest.mark.parametrize("before", ["", " \n", "-- note\n/* another */ "])
def test_the_hint_asks_for_events_on_both_routes(service: Service, path: str, before: str) -> None:
    sql = f"{before}{HINT} select 1 as n"
    body: dict[str, Any] = {"json": {"sql": sql}} if path == "/v1/query" else {"content": sql}
    headers = {} if path == "/v1/query" else {"Content-Type": "text/plain"}
    assert rows_of(events_of(service.call("POST", path, headers=headers, **body))) == [{"n": 1}]


def test_without_hint_and_header_the_answer_is_json(service: Service) -> None:
    assert service.post_query(f"select 1 as n {HINT}").json()["rows"] == [{"n": 1}]
    assert ask(service, "select 1 as n", "application/json, text/event-stream").json()["rows"] == [{"n": 1}]


def test_a_large_request_streams_like_a_small_one(service: Service) -> None:
    rows, end = stream(service, f"select 1 as n /* {'x' * 100_000} */")
    assert (rows, end.type) == ([{"n": 1}], "done")


def test_a_connection_is_reused_after_a_stream(service: Service) -> None:
    with httpx.Client(verify=service.http._transport._pool._ssl_context, timeout=30) as client:  # type: ignore[attr-defined]
        for stream_format in (SSE, NDJSON, CSV, SSE):
            headers = {"Authorization": f"Bearer {service.api_key}", "Accept": stream_format}
            response = client.post(f"{service.data_url}/v1/query", json={"sql": "select 1 as n"}, headers=headers)
            assert "connection" not in response.headers
            assert "1" in response.text


def test_ndjson_has_columns_rows_and_an_end_of_its_own(service: Service) -> None:
    response = ask(service, "select n, E'two\\nlines' as text from generate_series(1, 2) n", NDJSON)
    assert response.headers["content-type"] == NDJSON
    columns, *rows, end = [json.loads(line) for line in response.text.splitlines()]
    assert columns["columns"] == ["n", "text"]
    assert rows == [{"n": n, "text": "two\nlines"} for n in (1, 2)]
    assert end["success"]
    assert end["row_count"] == 2


def test_csv_is_read_back_by_a_reader_of_csv(service: Service) -> None:
    response = ask(
        service, "select 1 as id, E'a,\"b\"\\nc' as \"the, text\", null as nothing, '' as empty, true as yes", CSV
    )
    assert response.headers["content-type"].startswith("text/csv")
    read = list(csv.reader(io.StringIO(response.text, newline=""), strict=True))
    assert read == [["id", "the, text", "nothing", "empty", "yes"], ["1", 'a,"b"\nc', "", "", "true"]]
    assert response.text.endswith(',,"",true\r\n')


@pytest.mark.parametrize("stream_format", [SSE, NDJSON])
def test_no_value_can_break_the_frame(service: Service, stream_format: str) -> None:
    sql = (
        """select E'a\\n\\nevent: done\\ndata: {}\\n\\n' as "x\ny","""
        """ '{"a":\n\n"b"}'::json as j, E'\\r' as r, 'é😀' as u"""
    )
    if stream_format == SSE:
        (row,), _ = stream(service, sql)
    else:
        row = json.loads(ask(service, sql, NDJSON).text.split("\n")[1])
    assert row == {"x\ny": "a\n\nevent: done\ndata: {}\n\n", "j": {"a": "b"}, "r": "\r", "u": "é😀"}


def test_options_and_parameters_hold_for_streams(service: Service) -> None:
    rows, _ = stream(
        service, "select $1::int8 as n, $2::text as n", params=[9007199254740993, "x"],
        row_format="array", big_numbers="string",
    )  # fmt: skip
    assert rows == [["9007199254740993", "x"]]


@pytest.mark.parametrize("stream_format", [SSE, NDJSON, CSV])
@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [
        ("select 1/0", 200, "division_by_zero"),
        ("select * from nowhere", 200, "undefined_table"),
        ("selct 1", 400, "syntax_error"),
        ("select 1; select 2", 400, "multiple_statements"),
        ("begin", 400, "transaction_control"),
        ("", 400, "empty_statement"),
    ],
)
def test_an_error_before_the_first_row_keeps_its_status_and_json(
    service: Service, stream_format: str, sql: str, status: int, code: str
) -> None:
    error_of(ask(service, sql, stream_format), status, code)


def test_positions_count_in_the_text_that_was_sent(service: Service) -> None:
    sql = f"{HINT} select nothing_like_it"
    error = service.post_query(sql).json()["error"]
    assert error["position"] == sql.index("nothing_like_it") + 1


def test_an_error_after_the_first_row_is_the_last_event(service: Service) -> None:
    rows, end = stream(service, "select 10 / (3 - n) as q from generate_series(1, 5) n")
    assert rows == [{"q": 5}, {"q": 10}]
    assert end.type == "error"
    assert end.content["code"] == "division_by_zero"
    assert end.content["sqlstate"] == "22012"
    assert end.content["outcome"] == "rolled_back"
    assert end.content["request_id"].startswith("req_")


def test_an_error_after_the_first_row_is_the_last_line_of_ndjson(service: Service) -> None:
    lines = ask(service, "select 10 / (3 - n) as q from generate_series(1, 5) n", NDJSON).text.splitlines()
    end = json.loads(lines[-1])
    assert (len(lines), end["success"], end["error"]["code"]) == (4, False, "division_by_zero")


def test_an_error_after_the_first_row_breaks_csv_off(service: Service) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        ask(service, "select 10 / (3 - n) as q from generate_series(1, 5) n", CSV)


@pytest.mark.parametrize(
    "sql",
    [
        "insert into streamed_writes select g from generate_series(1, 3) g returning n",
        "with new as (insert into streamed_writes select g from generate_series(1, 3) g returning n) select n from new",
    ],
)
def test_a_streamed_write_is_committed_when_done_is_sent(service: Service, sql: str) -> None:
    service.query("drop table if exists streamed_writes")
    service.query("create table streamed_writes (n int)")
    rows, end = stream(service, sql)
    assert rows == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert end.type == "done"
    assert service.value("select count(*) from streamed_writes") == 3


def test_a_write_that_fails_at_its_end_has_sent_no_row(service: Service) -> None:
    service.query("drop table if exists streamed_unique")
    service.query("create table streamed_unique (n int unique deferrable initially deferred)")
    response = ask(service, "insert into streamed_unique select 1 from generate_series(1, 2) returning n")
    assert response.json()["error"]["code"] == "unique_violation"
    assert service.value("select count(*) from streamed_unique") == 0


def test_a_statement_without_a_result_is_an_empty_stream(service: Service) -> None:
    events = events_of(ask(service, "create table if not exists streamed_nothing (n int)"))
    assert [event.type for event in events] == ["columns", "done"]
    assert events[0].content["columns"] == []
    assert events[1].content["command"] == "CREATE TABLE"


@pytest.mark.parametrize("sql", ["(select 1 as n) union all (select 2)", "values (1), (2)", "table streamed_pair;"])
def test_statements_with_a_cursor_are_streamed(service: Service, sql: str) -> None:
    service.query("create table if not exists streamed_pair as values (1), (2)")
    rows, end = stream(service, sql)
    assert [list(row.values()) for row in rows] == [[1], [2]]
    assert end.type == "done"


@pytest.mark.parametrize("sql", ["show transaction_isolation", "explain select 1"])
def test_statements_without_a_cursor_are_streamed_too(service: Service, sql: str) -> None:
    rows, end = stream(service, sql)
    assert (len(rows), end.type) == (1, "done")


def test_no_rows_are_no_rows(service: Service) -> None:
    rows, end = stream(service, "select 1 as n where false")
    assert (rows, end.content["row_count"]) == ([], 0)


@pytest.mark.parametrize("fields", [{"key": "read"}, {"read_only": True}])
def test_a_read_only_stream_stays_read_only(service: Service, fields: dict[str, Any]) -> None:
    service.query("create table if not exists streamed_kept (n int)")
    if "key" in fields:
        fields = {"key": read_key(service)}
    response = ask(
        service, "with new as (insert into streamed_kept values (1) returning n) select * from new", **fields
    )
    assert response.json()["error"]["code"] in ("read_only_sql_transaction", "insufficient_privilege")
    assert service.value("select count(*) from streamed_kept") == 0
    rows, _ = stream(service, "select 1 as n", **fields)
    assert rows == [{"n": 1}]


def test_streams_read_in_a_serializable_read_only_deferrable_transaction(service: Service) -> None:
    settings = ("transaction_isolation", "transaction_read_only", "transaction_deferrable", "statement_timeout")
    columns = ", ".join(f"current_setting('{name}') as {name}" for name in settings)
    (row,), _ = stream(service, f"select {columns}")
    assert list(row.values()) == ["serializable", "on", "on", "0"]


def test_a_stream_starts_soon_beside_a_long_transaction(service: Service) -> None:
    """A safe snapshot would be had only when the other transaction ends."""
    with service.engine() as engine:
        engine.execute("begin isolation level serializable read write")
        engine.execute("create table long_writer (n int)")
        (row,), end = stream(service, "select current_setting('transaction_deferrable') as deferrable")
        engine.execute("rollback")
    assert (row["deferrable"], end.type) == ("off", "done")


@pytest.mark.parametrize(("max_rows", "rows", "truncated"), [(0, 0, True), (3, 3, True), (5, 5, False), (9, 5, False)])
def test_max_rows_cuts_exactly(service: Service, max_rows: int, rows: int, truncated: bool) -> None:
    got, end = stream(service, "select generate_series(1, 5) as n", max_rows=max_rows)
    assert (len(got), end.content["row_count"], end.content["truncated"]) == (rows, rows, truncated)


def test_an_interrupted_stream_of_a_slow_statement_ends_soon(service: Service) -> None:
    """Otherwise it would end at its deadline, with an error."""
    got, end = stream(
        service, "select n, pg_sleep(case when n > 3 then 600 else 0 end) from generate_series(1, 9) n", max_rows=2
    )
    assert (len(got), end.content["truncated"]) == (2, True)


def test_a_stream_has_no_limit_of_rows_or_bytes_beyond_a_buffered_results(service: Service) -> None:
    key = free_key(service)
    sql = "select n, repeat('x', 1000) as text from generate_series(1, 30000) n"
    assert ask(service, sql, "application/json", key=key).json()["truncated"]
    response = ask(service, sql, key=key)
    assert EventParser().feed(response.content)[-1].content["row_count"] == 30_000


def test_one_row_may_be_as_large_as_a_buffered_result(service: Service) -> None:
    response = ask(service, "select repeat('x', 11 * 1024 * 1024) as text", key=free_key(service))
    assert response.json()["error"]["code"] == "result_too_large"
    rows, end = stream(service, "select repeat('x', 9 * 1024 * 1024) as text", key=free_key(service))
    assert (len(rows[0]["text"]), end.type) == (9 * 1024 * 1024, "done")


def test_the_deadline_ends_a_stream_with_an_error(service: Service) -> None:
    rows, end = stream(service, "select n, pg_sleep(0.1) from generate_series(1, 100) n", timeout_ms=500)
    assert 1 <= len(rows) <= 5
    assert (end.type, end.content["code"], end.content["outcome"]) == ("error", "statement_timeout", "rolled_back")


def test_a_stream_may_last_longer_than_a_statement(service: Service) -> None:
    """In the tier free a statement has 10 s and a stream 60 s; 11 s are enough to tell."""
    rows, end = stream(service, "select n, pg_sleep(1.1) from generate_series(1, 10) n", key=free_key(service))
    assert (len(rows), end.type) == (10, "done")


def test_the_log_records_the_outcome_of_a_stream(service: Service) -> None:
    response = ask(service, "select generate_series(1, 7) as n", NDJSON)
    logs = [path for path in service.folder.rglob("*.log") if "data" in path.name]
    line = _logged(logs, response.headers["x-request-id"])
    assert (line["stream"], line["row_count"], line["sent_bytes"]) == ("ndjson", 7, len(response.content))
    assert (line["status"], line["error_code"]) == (200, None)


def _logged(logs: list[Any], request_id: str) -> dict[str, Any]:
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        for path in logs:
            for text in re.findall(rf"^.*{request_id}.*$", path.read_text(), re.MULTILINE):
                line: dict[str, Any] = json.loads(text)
                return line
        time.sleep(0.02)
    raise AssertionError("not in the log")


def test_a_stream_says_why_its_rows_were_not_sent_earlier(service: Service) -> None:
    service.query("create table if not exists streamed_whole (n int)")
    write = "insert into streamed_whole select g from generate_series(1, 3) g returning n"
    first = events_of(ask(service, write))[0].content
    assert first["buffered"] is True
    assert "run to their end first" in first["buffered_reason"]
    assert json.loads(ask(service, write, NDJSON).text.splitlines()[0])["buffered"] is True
    assert "buffered" not in events_of(ask(service, "select n from streamed_whole"))[0].content


def test_a_streamed_write_with_too_large_a_result_is_not_advised_to_stream(service: Service) -> None:
    create = {"sql": "create table if not exists streamed_large (t text)"}
    assert service.call("POST", "/v1/query", key=free_key(service), json=create).json()["success"]
    write = "insert into streamed_large select repeat('x', 100000) from generate_series(1, 150) returning t"
    error = error_of(ask(service, write, key=free_key(service)), 200, "result_too_large")
    assert "STREAM" not in error["hint"]
