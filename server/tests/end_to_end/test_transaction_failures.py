"""A transaction that fails says which statement failed and what came of it, and leaves nothing behind."""

import time

import pytest

from server.tests.end_to_end.error_shape import check_shape, error_of
from server.tests.end_to_end.transactions import Sent, fresh_table, last_row, numbers, post, run, with_params
from server.tests.load import STALL_S
from server.tests.service import Service

FAILURES: dict[str, tuple[Sent, int, str]] = {
    "parse": ("selec 1", 400, "syntax_error"),
    "unterminated": ("select 'x", 400, "syntax_error"),
    "parse with parameters": (with_params("selec $1", 1), 400, "syntax_error"),
    "missing table": ("select * from nowhere_at_all", 200, "undefined_table"),
    "missing table with parameters": (with_params("select $1::int from nowhere_at_all", 1), 200, "undefined_table"),
    "execution": ("select 1 / (select 0)", 200, "division_by_zero"),
    "execution with parameters": (with_params("select 1 / $1::int", 0), 200, "division_by_zero"),
    "execution after rows": ("select 1 / (1000 - g) from generate_series(1, 2000) g", 200, "division_by_zero"),
    "constraint": ("insert into {} values (0)", 200, "unique_violation"),
    "too many parameters": (with_params("select $1::int", 1, 2), 400, "wrong_parameter_count"),
    "too few parameters": (with_params("select $1::int, $2::int", 1), 400, "wrong_parameter_count"),
    "no parameters": ("select $1::int", 400, "wrong_parameter_count"),
    "needless parameters": (with_params("select 1", 1), 400, "wrong_parameter_count"),
    "parameter of a wrong kind": (with_params("select $1::int", [1]), 400, "invalid_parameter"),
    "parameter of a wrong form": (with_params("select $1::int", "one"), 200, "invalid_text_representation"),
    "parameter with NUL": (with_params("select $1::text", "a\0b"), 400, "null_character"),
    "text with NUL": ("select 1 \0", 400, "null_character"),
    "refused command": ("commit", 400, "transaction_control"),
    "notification": ("notify x", 400, "listen_not_supported"),
    "copy": ("copy {} to stdout", 400, "copy_not_supported"),
    "stream": ("/*+ STREAM */ select 1", 400, "stream_in_transaction"),
    "stream after a comment": ("-- x\n /* y */ /*+ stream */ select 1", 400, "stream_in_transaction"),
    "stream with parameters": (with_params("/*+ STREAM */ select $1::int", 1), 400, "stream_in_transaction"),
    "syntax error in a block": ("do $$ begin execute 'selec 1'; end $$", 200, "syntax_error"),
    "empty": ("", 400, "empty_statement"),
    "blank": (" \n;; ", 400, "empty_statement"),
    "comment": ("-- nothing", 400, "empty_statement"),
    "nested comment": ("/* /* nothing */ */ ; --", 400, "empty_statement"),
    "empty with parameters": (with_params("/**/", 1), 400, "empty_statement"),
    "two statements": ("select 1; select 2", 400, "multiple_statements"),
    "two statements with parameters": (with_params("select $1::int; select 2", 1), 400, "multiple_statements"),
    "own error": ("do $$ begin raise sqlstate 'AB123'; end $$", 200, "statement_failed"),
    "outside a block only": ("vacuum {}", 200, "active_sql_transaction"),
}  # fmt: skip


@pytest.mark.parametrize("position", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_names_its_statement_and_rolls_back(service: Service, kind: str, position: int) -> None:
    table = fresh_table(service)
    service.query(f"insert into {table} values (0)")
    failing, status, code = FAILURES[kind]
    if isinstance(failing, str):
        failing = failing.replace("{}", table)
    statements: list[Sent] = []
    # Text alone goes to the engine together with the commit; a new parameter must be asked about before.
    for second in (f"insert into {table} values (2)", with_params(f"insert into {table} values ($1)", 2)):
        statements = [f"insert into {table} values (1)", second]
        statements.insert(position, failing)
        error = error_of(post(service, *statements), status, code)
        assert error["statement_index"] == position, error
        assert error["outcome"] in ("rolled_back", "not_executed")
        assert numbers(service, table) == [0]
    statements[position] = f"insert into {table} values (3)"
    run(service, *statements)
    assert numbers(service, table) == [0, 1, 2, 3]


def test_a_constraint_that_fails_at_commit_belongs_to_no_statement(service: Service) -> None:
    parent = fresh_table(service)
    child = fresh_table(service, f"n int references {parent} deferrable initially deferred")
    for _ in range(2):
        response = post(service, f"insert into {child} values (1)", with_params(f"insert into {child} values ($1)", 2))
        error = error_of(response, 200, "foreign_key_violation")
        assert "statement_index" not in error
        assert (error["outcome"], error["table"]) == ("rolled_back", child)
        assert numbers(service, child) == []
    run(service, f"insert into {child} values (1)", f"insert into {parent} values (1)")
    assert numbers(service, child) == [1]


def test_a_deferred_trigger_that_fails_at_commit_rolls_back(service: Service) -> None:
    table = fresh_table(service)
    service.query(f"create function {table}_f() returns trigger language plpgsql as $$begin perform 1/0; end$$")
    service.query(
        f"create constraint trigger late after insert on {table} deferrable initially deferred"
        f" for each row execute function {table}_f()"
    )
    for idempotency_key in ("", f"late-{table}"):
        response = post(service, f"insert into {table} values (1)", "select 1", idempotency_key=idempotency_key)
        error = error_of(response, 200, "division_by_zero")
        assert "statement_index" not in error
        assert numbers(service, table) == []


def test_a_table_and_its_types_can_be_made_and_used_in_one_transaction(service: Service) -> None:
    name = fresh_table(service)
    answer = run(
        service,
        f"create type {name}_mood as enum ('glad', 'sad')",
        f"create domain {name}_positive as int check (value > 0)",
        f"create table {name}_new (m {name}_mood, p {name}_positive, j jsonb, a int[])",
        with_params(f"insert into {name}_new values ($1, $2, $3, $4)", "glad", 7, {"a": 1}, [1, 2]),
        with_params(f"select * from {name}_new where m = $1", "glad"),
        f"alter table {name}_new rename column p to q",
        with_params(f"select q from {name}_new where q = $1", 7),
    )
    assert answer["results"][4]["rows"] == [{"m": "glad", "p": 7, "j": {"a": 1}, "a": [1, 2]}]
    assert answer["results"][6]["rows"] == [{"q": 7}]
    assert service.query(f"select m from {name}_new")["types"] == [f"{name}_mood"]


def test_ddl_is_rolled_back_with_the_rest(service: Service) -> None:
    name = fresh_table(service)
    made: list[Sent] = [
        f"create table {name}_new (a int)",
        with_params(f"insert into {name}_new values ($1)", 1),
        "select 1/0",
    ]
    error_of(post(service, *made), 200, "division_by_zero")
    error_of(service.post_query(f"select * from {name}_new"), 200, "undefined_table")
    run(service, *made[:2])
    assert service.query(f"select a from {name}_new")["rows"] == [{"a": 1}]


def test_a_stale_plan_is_retried_transparently(service: Service) -> None:
    table = fresh_table(service, "a int, b int")
    service.query(f"insert into {table} values (1, 2)")
    read = with_params(f"select * from {table} where a = $1", 1)
    write = with_params(f"insert into {table} (a) values ($1) returning *", 5)
    for change, row in (
        ("alter column b type text", {"a": 1, "b": "2"}),
        ("add column c int", {"a": 1, "b": "2", "c": None}),
        ("drop column b", {"a": 1, "c": None}),
    ):
        run(service, read, write)
        service.query(f"alter table {table} {change}")
        results = run(service, write, read)["results"]
        assert results[1]["rows"] == [row]
    assert service.value(f"select count(*) from {table} where a = 5") == 6


def test_a_schema_change_within_the_transaction_is_handled_transparently(service: Service) -> None:
    table = fresh_table(service, "a int")
    service.query(f"insert into {table} values (1)")
    read = with_params(f"select * from {table} where a = $1", 1)
    began_s = time.monotonic()
    for number in range(3):
        results = run(service, read, f"alter table {table} add column b{number} int", read)["results"]
        assert len(results[2]["columns"]) == len(results[0]["columns"]) + 1
    results = run(service, read, "deallocate all", read)["results"]
    assert results[0]["rows"] == results[2]["rows"]
    assert time.monotonic() - began_s < 3 + STALL_S


@pytest.mark.parametrize(
    "failing", ["execute mine", "do $$ begin raise exception 'cached plan must not change result type'"
                " using errcode = '0A000'; end $$", with_params("select * from lying($1)", 1)],
    ids=["prepared by the customer", "raised by the customer", "raised by a function"],
)  # fmt: skip
def test_errors_that_resemble_a_stale_plan_fail_at_once(service: Service, failing: Sent) -> None:
    table = fresh_table(service, "a int")
    service.query(
        "create or replace function lying(int) returns int language plpgsql as $$ begin"
        " raise exception 'cached plan must not change result type' using errcode = '0A000'; end $$"
    )
    began_s = time.monotonic()
    response = post(
        service, f"prepare mine as select * from {table}", f"alter table {table} add column b int", failing,
        timeout_ms=60_000,
    )  # fmt: skip
    assert error_of(response, 200, "feature_not_supported")["statement_index"] == 2
    assert time.monotonic() - began_s < 4 + STALL_S


def test_a_result_that_cannot_be_returned_reports_the_outcome(service: Service) -> None:
    table = fresh_table(service)
    tell = ["set client_encoding = 'LATIN1'", "select chr(233) as e"]
    error = error_of(post(service, f"insert into {table} values (1)", *tell), 200, "untranslatable_character")
    assert (error["outcome"], numbers(service, table)) == ("committed", [1])
    expecting = {"sql": f"insert into {table} values (2)", "expect": {"affected_rows": 1}}
    error = error_of(post(service, expecting, *tell), 200, "untranslatable_character")
    assert (error["outcome"], numbers(service, table)) == ("rolled_back", [1])


def test_a_failed_type_lookup_executes_nothing_twice(service: Service) -> None:
    """The look-up needs a connection of its own, which may be refused while the commit is on its way."""
    service.customers.add_database("narrow")
    table = fresh_table(service, "n serial", database="narrow")
    service.query(f"create type {table}_mood as enum ('glad')", database="narrow")
    role = service.value("select current_user::text", database="narrow")
    reported = []
    with service.engine() as engine:
        for number, idempotency_key in enumerate(("", "", "narrow-1", "")):
            service.query("select 1", database="narrow")
            engine.execute(f"alter role {role} connection limit 0")
            mood = f"'glad'::{table}_mood as mood{number}"
            if number:
                response = post(
                    service, f"insert into {table} default values", f"select {mood}", database="narrow",
                    idempotency_key=idempotency_key,
                )  # fmt: skip
            else:
                response = service.post_query(f"insert into {table} default values returning {mood}", database="narrow")
            reported.append(check_shape(response)["error"]["outcome"])
            engine.execute(f"alter role {role} connection limit 64")
    there = service.value(f"select count(*) from {table}", database="narrow")
    assert reported.count("committed") <= there <= reported.count("committed") + reported.count("unknown"), reported


def test_the_session_of_an_earlier_request_does_not_show_in_a_transaction(service: Service) -> None:
    assert service.query("set work_mem = '9MB'")["success"]
    assert last_row(service, "show work_mem") == {"work_mem": "4MB"}
