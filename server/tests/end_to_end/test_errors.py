"""Every status that the query routes can give, and the shape of errors."""

import http.client
import json
import secrets
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.error_shape import check_shape, error_of
from server.tests.service import Service

MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def free_key(service: Service) -> str:
    """A key of an organization of the tier free, whose limits are the smallest."""
    return tenants.free_key(service)


def post_raw(service: Service, body: bytes | Iterator[bytes], *, key: str = "", **headers: str) -> httpx.Response:
    """POST /v1/query with exactly these bytes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return service.call("POST", "/v1/query", content=body, headers={**JSON, **named}, key=key)


def post_both(service: Service, sql: str, **options: Any) -> list[httpx.Response]:
    """The same statement to both routes, which must answer alike."""
    responses = [service.post_query(sql, **options), service.post_text(sql, **options)]
    assert responses[0].status_code == responses[1].status_code
    assert without_what_differs(responses[0]) == without_what_differs(responses[1])
    return responses


def without_what_differs(response: httpx.Response) -> dict[str, Any]:
    return {name: value for name, value in response.json().items() if name not in ("timings", "request_id")}


@pytest.fixture(scope="module")
def ordered(service: Service) -> str:
    """The name of a schema with two tables that have every kind of constraint."""
    schema = f"errors_{secrets.token_hex(4)}"
    service.query(f"create schema {schema}")
    service.query(f"create table {schema}.parents (id int primary key)")
    service.query(
        f"create table {schema}.children (id int constraint one_id unique, parent int not null"
        f" constraint known_parent references {schema}.parents, age int constraint grown check (age > 17),"
        " span int4range, constraint apart exclude using gist (span with &&))"
    )
    service.query(f"insert into {schema}.parents values (1)")
    service.query(f"insert into {schema}.children values (1, 1, 20, '[1,5)')")
    return schema


@pytest.mark.parametrize(
    ("values", "code", "fields"),
    [
        ("(1, 1, 20, null)", "unique_violation",
         {"sqlstate": "23505", "constraint": "one_id", "detail": "Key (id)=(1) already exists."}),
        ("(2, null, 20, null)", "not_null_violation", {"sqlstate": "23502", "column": "parent"}),
        ("(2, 7, 20, null)", "foreign_key_violation", {"sqlstate": "23503", "constraint": "known_parent"}),
        ("(2, 1, 7, null)", "check_violation", {"sqlstate": "23514", "constraint": "grown"}),
        ("(2, 1, 20, '[4,6)')", "exclusion_violation", {"sqlstate": "23P01", "constraint": "apart"}),
    ],
)  # fmt: skip
def test_a_violated_constraint_is_200_and_is_named(
    service: Service, ordered: str, values: str, code: str, fields: dict[str, str]
) -> None:
    for response in post_both(service, f"insert into {ordered}.children values {values}"):
        error = error_of(response, 200, code)
        assert error.items() >= {"schema": ordered, "table": "children", **fields}.items()
        assert error["detail"]
        assert error["outcome"] == "rolled_back"
        assert error["retryable"] is False
    assert service.value(f"select count(*) from {ordered}.children") == 1


def test_a_constraint_that_fails_at_commit_is_reported_like_any_other(service: Service, ordered: str) -> None:
    service.query(
        f"create table {ordered}.later (id int constraint known references {ordered}.parents"
        " deferrable initially deferred)"
    )
    error = error_of(service.post_query(f"insert into {ordered}.later values (99)"), 200, "foreign_key_violation")
    assert error["constraint"] == "known"
    assert service.value(f"select count(*) from {ordered}.later") == 0


@pytest.mark.parametrize(
    ("sql", "code", "sqlstate"),
    [
        ("select * from no_such_table", "undefined_table", "42P01"),
        ("select no_such_column", "undefined_column", "42703"),
        ("select no_such_function()", "undefined_function", "42883"),
        ("select 1/0", "division_by_zero", "22012"),
        ("select 'x'::int", "invalid_text_representation", "22P02"),
        ("select 2147483647::int4 + 1::int4", "numeric_value_out_of_range", "22003"),
        ("create table pg_catalog.mine ()", "insufficient_privilege", "42501"),
        ("create database another", "insufficient_privilege", "42501"),
        ("do $$begin raise exception 'mine'; end$$", "raise_exception", "P0001"),
        ("do $$begin raise exception 'mine' using errcode = 'ZZ999'; end$$", "statement_failed", "ZZ999"),
        ("do $$begin raise exception 'mine' using errcode = '08000'; end$$", "connection_exception", "08000"),
        ("do $$begin raise exception 'mine' using errcode = '57P01'; end$$", "admin_shutdown", "57P01"),
        ("do $$begin raise exception 'mine' using errcode = '53300'; end$$", "too_many_connections", "53300"),
    ],
)
def test_a_statement_that_the_engine_refuses_or_fails_is_200(
    service: Service, sql: str, code: str, sqlstate: str
) -> None:
    for response in post_both(service, sql):
        error = error_of(response, 200, code)
        assert error["sqlstate"] == sqlstate
        assert error["outcome"] == "rolled_back"


def test_a_raised_error_keeps_every_field_that_its_author_gave_it(service: Service) -> None:
    sql = (
        "do $$begin raise exception 'm' using detail = 'd', hint = 'h', schema = 's', table = 't', column = 'c',"
        " constraint = 'k'; end$$"
    )
    error = error_of(service.post_query(sql), 200, "raise_exception")
    assert error == {
        "code": "raise_exception", "message": "m", "sqlstate": "P0001", "detail": "d", "hint": "h", "schema": "s",
        "table": "t", "column": "c", "constraint": "k", "retryable": False, "outcome": "rolled_back",
    }  # fmt: skip


def test_a_retryable_failure_is_marked_retryable(service: Service) -> None:
    sql = "do $$begin raise exception 'again' using errcode = '{}'; end$$"
    assert error_of(service.post_query(sql.format("40001")), 200, "serialization_failure")["retryable"] is True
    assert error_of(service.post_query(sql.format("40P01")), 200, "deadlock_detected")["retryable"] is True


def test_a_statement_past_its_deadline_is_cancelled_and_200(service: Service) -> None:
    for response in post_both(service, "select pg_sleep(600)", timeout_ms=150):
        error = error_of(response, 200, "statement_timeout")
        assert "150 ms" in error["message"]
        assert "'dedicated'" in error["message"]
        assert error["outcome"] == "rolled_back"


def test_a_result_over_the_byte_limit_is_200_and_names_the_limit(service: Service, free_key: str) -> None:
    sql = "select repeat('x', 1024 * 1024) from generate_series(1, 11)"
    response = service.call("POST", "/v1/query", json={"sql": sql}, key=free_key)
    error = error_of(response, 200, "result_too_large")
    assert str(10 * MIB) in error["message"]
    assert "the free tier" in error["message"]
    assert service.call("POST", "/v1/query", json={"sql": "select 1"}, key=free_key).json()["success"]


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("selec 1", 1),
        ("select 1 frm t", None),
        ("select 'é' a b c", 14),
        ("select '😀😀' a b c", 15),
        ("/* 汉字 */ selec 1", 10),
        ("select 'never closed", 8),
        ('select "never closed', 8),
        ("select $$never closed", 8),
        ("/* never closed", 1),
        ("select /* never /* closed */", 8),
        ("select 1a", 8),
        ("select E'\\u12'", 10),
        ("select U&'\\zzzz'", 11),
        ("explain begin", 9),
        ("\ufeffselect 1", 1),
    ],
)
def test_a_syntax_error_is_400_and_its_position_counts_characters(
    service: Service, sql: str, position: int | None
) -> None:
    for response in post_both(service, sql):
        assert response.status_code == 400, response.text
        error = check_shape(response)["error"]
        assert error["sqlstate"]
        assert error["outcome"] == "not_executed"
        assert position is None or error["position"] == position


def test_a_syntax_error_is_the_same_with_parameters(service: Service) -> None:
    error = error_of(service.post_query("select $1 a b c", 1), 400, "syntax_error")
    assert error["position"] == 13


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b"}", b"nonsense", b"{'sql': 'select 1'}", b'{"sql": "select 1",}', b'{"sql": "select 1"} x',
     b'{"sql": "select 1"}{}', b'{"sql": "select 1"', b'{"sql": "select 1', b'{"sql": select 1}', b"\xff\xfe", b"\0",
     b'{"sql": "\xff"}', b'\xef\xbb\xbf{"sql": "select 1"}', b'{"sql": "\\ud800"}', b'{"sql": "\\x"}',
     b'{"sql": "a\nb"}', b'{"sql": "select 1", "params": [01]}', b'{"sql": "select 1", "params": [NaN]}',
     b'{"sql": "select 1", "params": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
     '{"sql": "select 1"}'.encode("utf-16")],
)  # fmt: skip
def test_malformed_json_is_400(service: Service, body: bytes) -> None:
    assert error_of(post_raw(service, body), 400, "malformed_request")["outcome"] == "not_executed"


@pytest.mark.parametrize(
    "body",
    [[], None, "select 1", 1, True, {}, {"sql": None}, {"sql": 1}, {"sql": ["select 1"]}, {"SQL": "select 1"},
     {"sql": "select 1", "params": {}}, {"sql": "select 1", "params": "x"}, {"sql": "select 1", "params": None},
     {"sql": "select 1", "database": 1}, {"sql": "select 1", "row_format": "csv"},
     {"sql": "select 1", "row_format": None}, {"sql": "select 1", "big_numbers": True},
     {"sql": "select 1", "max_rows": -1}, {"sql": "select 1", "max_rows": "1"}, {"sql": "select 1", "max_rows": 1.5},
     {"sql": "select 1", "timeout_ms": 0}, {"sql": "select 1", "timeout_ms": "9"},
     {"sql": "select 1", "read_only": "yes"}, {"sql": "select 1", "read_only": 1},
     {"sql": "select 1", "unknown": 1}, {"sql": "select 1", "statements": []}],
)  # fmt: skip
def test_a_missing_unknown_or_wrongly_typed_field_is_400(service: Service, body: Any) -> None:
    error_of(post_raw(service, json.dumps(body).encode()), 400, "malformed_request")


@pytest.mark.parametrize(
    "options",
    [{"max_rows": "x"}, {"max_rows": "-1"}, {"max_rows": ""}, {"row_format": "csv"}, {"big_numbers": "1"},
     {"timeout_ms": "0"}, {"timeout_ms": "1.5"}, {"unknown": "1"}, {"read_only": "true"}],
)  # fmt: skip
def test_an_invalid_option_of_the_query_string_is_400(service: Service, options: dict[str, str]) -> None:
    error = error_of(service.post_text("select 1", **options), 400, "invalid_option")
    assert next(iter(options)) in error["message"]


@pytest.mark.parametrize(
    "sql",
    ["select 1; select 2", "select 1;select", "select 1; -- x\nselect 2", ";select 1; select 2;", "select 1; commit",
     "create table never_made (); drop table never_made", "select ';'; select 1"],
)  # fmt: skip
def test_more_than_one_statement_is_400(service: Service, sql: str) -> None:
    for response in post_both(service, sql):
        assert response.status_code == 400
        error = check_shape(response)["error"]
        assert error["code"] in ("multiple_statements", "syntax_error")
    assert "/v1/transaction" in error_of(service.post_query("select 1; select 2"), 400, "multiple_statements")["hint"]


def test_more_than_one_statement_is_400_with_parameters_too(service: Service) -> None:
    error_of(service.post_query("select $1; select 2", 1), 400, "multiple_statements")


@pytest.mark.parametrize("sql", ["select 1;", ";select 1", "select ';'", "select 1 /* ; */;; -- ;", "select $$;$$"])
def test_a_semicolon_that_separates_nothing_is_no_second_statement(service: Service, sql: str) -> None:
    assert all(response.json()["success"] for response in post_both(service, sql))


@pytest.mark.parametrize("sql", ["", " ", "\n", ";", " ;; ", "-- nothing", "/* nothing */", "/* a */;-- b\n;"])
def test_a_text_without_a_statement_is_400(service: Service, sql: str) -> None:
    for response in post_both(service, sql):
        error_of(response, 400, "empty_statement")


@pytest.mark.parametrize(
    "sql",
    ["begin", "BEGIN;", "/* /* */ */begin", "--\rbegin", "--\nbegin", ";begin", "start transaction", "commit", "end",
     "rollback", "abort", "savepoint a", "rollback to a", "release a", "prepare transaction 'a'",
     "commit prepared 'a'", "rollback prepared 'a'", "set transaction read write"],
)  # fmt: skip
def test_transaction_control_is_400_and_names_the_route_for_it(service: Service, sql: str) -> None:
    for response in post_both(service, sql):
        assert "/v1/transaction" in error_of(response, 400, "transaction_control")["hint"]


@pytest.mark.parametrize(
    ("sql", "code"),
    [("copy (select 1) to stdout", "copy_not_supported"), ("copy t from stdin", "copy_not_supported"),
     ("copy t to '/tmp/t'", "copy_not_supported"), ("listen a", "listen_not_supported"),
     ("unlisten *", "listen_not_supported"), ("notify a", "listen_not_supported"),
     ("select '\0'", "null_character"), ("\0", "null_character")],
)  # fmt: skip
def test_statements_that_need_their_own_connection_or_contain_nul_are_400(
    service: Service, sql: str, code: str
) -> None:
    for response in post_both(service, sql):
        assert error_of(response, 400, code)["outcome"] == "not_executed"


@pytest.mark.parametrize(
    ("params", "code"),
    [([], "wrong_parameter_count"), ([1], "wrong_parameter_count"), ([1, 2, 3], "wrong_parameter_count"),
     ([1, {}], "invalid_parameter"), (["a\0b", 1], "null_character")],
)  # fmt: skip
def test_parameters_that_do_not_fit_the_statement_are_400(service: Service, params: list[Any], code: str) -> None:
    response = service.post_query("select $1::text, $2::int", params=params)
    assert error_of(response, 400, code)["outcome"] == "not_executed"


@pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/query/", "//", "/query/x", "/V1/QUERY", "/health/", "/v1/keys"])
def test_an_unknown_route_is_404_with_or_without_a_key(service: Service, path: str) -> None:
    for key in ("", None):
        error_of(service.call("POST", path, key=key), 404, "route_not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/query", "POST"), ("PUT", "/query", "POST"), ("DELETE", "/v1/query", "POST"),
     ("POST", "/", "GET"), ("POST", "/health", "GET"), ("PATCH", "/health", "GET")],
)  # fmt: skip
def test_a_wrong_method_is_405_and_the_right_ones_are_named(
    service: Service, method: str, path: str, allowed: str
) -> None:
    response = service.call(method, path)
    assert allowed in error_of(response, 405, "method_not_allowed")["message"]
    assert allowed in response.headers.get("allow", "").split(", ")


def test_a_body_announced_over_the_limit_is_413_before_it_is_sent(service: Service, free_key: str) -> None:
    url = urlsplit(service.data_url)
    trust = ssl.create_default_context(cafile=service.dev["ca_file"])
    connection = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=10, context=trust)
    connection.putrequest("POST", "/v1/query")
    for name, value in {**JSON, "Authorization": f"Bearer {free_key}", "Content-Length": str(4 * MIB + 1)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    assert (answer.status, body["error"]["code"]) == (413, "request_too_large")
    assert str(4 * MIB) in body["error"]["message"]
    assert "'free'" in body["error"]["message"]


def test_a_chunked_body_over_the_limit_is_413(service: Service, free_key: str) -> None:
    chunks = (b" " * MIB for _ in range(5))
    error_of(post_raw(service, chunks, key=free_key), 413, "request_too_large")


def test_a_body_of_exactly_the_limit_is_accepted(service: Service, free_key: str) -> None:
    body = b'{"sql": "select 1"}'.ljust(4 * MIB)
    assert post_raw(service, body, key=free_key).json()["success"]


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_statement_over_one_mebibyte_is_413(service: Service, letter: str) -> None:
    fits = "select 1 --".ljust(MIB - len(letter.encode())) + letter
    assert len(fits.encode()) == MIB
    assert service.post_text(fits).json()["success"]
    for response in post_both(service, fits + "x"):
        assert str(MIB) in error_of(response, 413, "statement_too_large")["message"]


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "application/jsonx", "application/json, text/plain", "application/json; charset=latin-1",
     "application/json; charset=utf-16"],
)  # fmt: skip
def test_a_content_type_other_than_json_in_utf_8_is_415(service: Service, content_type: str) -> None:
    response = service.call("POST", "/v1/query", content=b'{"sql": "select 1"}', headers={"Content-Type": content_type})
    assert "application/json" in error_of(response, 415, "unsupported_content_type")["hint"]


@pytest.mark.parametrize("content_type", ["application/json", "text/html", "text/plain; charset=iso-8859-1"])
def test_a_content_type_other_than_text_in_utf_8_is_415(service: Service, content_type: str) -> None:
    response = service.call("POST", "/query", content=b"select 1", headers={"Content-Type": content_type})
    assert "text/plain" in error_of(response, 415, "unsupported_content_type")["hint"]


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", 'APPLICATION/JSON;charset="UTF-8"', "application/json ;x=y"]
)
def test_the_content_type_may_name_utf_8_and_be_in_any_case(service: Service, content_type: str) -> None:
    response = service.call("POST", "/v1/query", content=b'{"sql": "select 1"}', headers={"Content-Type": content_type})
    assert response.json()["success"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
def test_a_compressed_body_is_415(service: Service, encoding: str) -> None:
    for path, headers in (("/v1/query", JSON), ("/query", TEXT)):
        response = service.call("POST", path, content=b"x", headers={**headers, "Content-Encoding": encoding})
        error_of(response, 415, "unsupported_content_encoding")


def test_text_that_is_not_utf_8_is_400(service: Service) -> None:
    response = service.call("POST", "/query", content=b"select '\xe9'", headers=TEXT)
    assert "byte 8" in error_of(response, 400, "malformed_request")["message"]


@pytest.mark.parametrize(
    "sql",
    [
        "do $$begin insert into {t} values (1); commit; raise exception 'x'; end$$",
        "do 'begin insert into {t} values (1); com'\n'mit; raise exception ''x''; end'",
        "do $$begin insert into {t} values (1); commit; perform pg_sleep(30); end$$",
        "create unique index concurrently {t}_twice on {t} (n)",
    ],
)
def test_an_error_during_the_commit_is_not_reported_as_rolled_back(service: Service, sql: str) -> None:
    table = f"t_{secrets.token_hex(6)}"
    service.query(f"create table {table} (n int)")
    service.query(f"insert into {table} values (7), (7)")
    answer = service.post_query(sql.format(t=table), timeout_ms=3_000).json()
    assert answer["error"]["outcome"] == "unknown", answer


RUNNING = {
    "EXECUTE": "do $$ begin execute 'selec 1'; end $$",
    "EXECUTE of an open string": "do $$ begin execute 'select ''open'; end $$",
    "a function": "select errors_run('selec 1')",
    "its own SQLSTATE": "do $$ begin raise sqlstate '42601'; end $$",
}


@pytest.mark.parametrize("sql", RUNNING.values(), ids=RUNNING)
def test_a_syntax_error_in_what_code_runs_is_an_error_of_the_statement(service: Service, sql: str) -> None:
    service.query(
        "create or replace function errors_run(text) returns void language plpgsql as $$ begin execute $1; end $$"
    )
    assert error_of(service.post_query(sql), 200, "syntax_error")["outcome"] == "rolled_back"


@pytest.mark.parametrize("sql", ["do $$ begin selec; end $$", "do $$ begin perform (; end $$"])
def test_a_block_that_cannot_be_parsed_is_a_parse_error(service: Service, sql: str) -> None:
    assert error_of(service.post_query(sql), 400, "syntax_error")["position"] > 0


@pytest.mark.parametrize("run", ["commit", "call errors_commit()", "do 'begin commit; end'"])
def test_what_a_block_executes_cannot_commit_so_its_failure_is_certain(service: Service, run: str) -> None:
    service.query("create table if not exists errors_left (n int)")
    service.query(
        "create or replace procedure errors_commit() language plpgsql as"
        " $$ begin insert into errors_left values (1); commit; end $$"
    )
    quoted = run.replace("'", "''")
    failed = service.post_query(f"do $$ begin insert into errors_left values (1); execute '{quoted}'; end $$").json()
    # A keyword in the text leaves it open.
    assert failed["error"]["outcome"] == "unknown"
    assert service.value("select count(*) from errors_left") == 0
    hidden = "".join(f"\\\\x{ord(each):x}" for each in run)
    failed = service.post_query(f"do $$ begin insert into errors_left values (1); execute E'{hidden}'; end $$").json()
    assert failed["error"]["outcome"] == "rolled_back"
    assert service.value("select count(*) from errors_left") == 0


def test_a_block_in_a_block_can_commit_so_its_failure_is_uncertain(service: Service) -> None:
    service.query("create table if not exists errors_nested (n int)")
    inner = "E'begin insert into errors_nested values (1); \\x63ommit; end'"
    failed = service.post_query(f"do $$ begin do {inner}; raise 'late'; end $$").json()
    assert failed["error"]["outcome"] == "unknown"
    assert service.value("select count(*) from errors_nested") == 1


def test_a_failure_says_how_long_it_took(service: Service) -> None:
    slow = "do $$ begin perform pg_sleep(0.1); raise 'mine'; end $$"
    timings = service.post_query(slow).json()["timings"]
    assert timings["total_us"] >= timings["exec_us"] >= 100_000
    # Again and again, so that the fast lane has it, too.
    for number in range(5):
        response = service.post_query("select pg_sleep(0.01), 1 / $1::int", 0)
        timings = response.json()["timings"]
        assert timings["total_us"] >= timings["exec_us"] > 0, number
        assert "engine;dur=0.000" not in response.headers["server-timing"]
    assert service.post_query("begin").json()["timings"]["exec_us"] == 0


@pytest.mark.parametrize(("field", "valid"), [("row_format", "array and object"), ("big_numbers", "number and string")])
def test_an_invalid_choice_is_answered_with_the_valid_ones(service: Service, field: str, valid: str) -> None:
    body = error_of(service.post_query("select 1", **{field: "x"}), 400, "malformed_request")
    option = error_of(service.post_text("select 1", **{field: "x"}), 400, "invalid_option")
    assert valid in body["message"]
    assert valid in option["message"]
