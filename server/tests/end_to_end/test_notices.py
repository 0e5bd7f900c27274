"""Notices and warnings come back with the result that they belong to: in queries, transactions, streams and failures.

The requests of one test go over one connection, and repeat, so that the fast lane has learned them: it must neither
lose a notice nor give it to another request.
"""

import json
from typing import Any

import pytest

from server.tests.end_to_end.tenants import second_database
from server.tests.end_to_end.transactions import Sent, post, run, with_params
from server.tests.events import EventParser
from server.tests.service import Service

ROUNDS = 5
RAISED = [
    {"severity": "NOTICE", "code": "00000", "message": "first"},
    {"severity": "WARNING", "code": "01000", "message": "second"},
]


@pytest.fixture(scope="module", autouse=True)
def functions(service: Service) -> None:
    """`say(text)` raises a notice and returns its text."""
    for database in ("main", second_database(service)):
        service.query(
            "create or replace function say(text) returns text language plpgsql as"
            " $$ begin raise notice '%', $1; return $1; end $$",
            database=database,
        )


def messages(result: dict[str, Any]) -> list[str]:
    return [notice["message"] for notice in result.get("notices", [])]


def test_a_query_returns_what_its_code_raises(service: Service) -> None:
    answer = service.query("do $$ begin raise notice 'first'; raise warning 'second'; end $$")
    assert answer["notices"] == RAISED
    assert "notices_omitted" not in answer


def test_a_notice_has_its_detail_and_its_hint(service: Service) -> None:
    raised = "raise notice 'n' using detail = 'the detail', hint = 'the hint', errcode = '01ABC'"
    assert service.query(f"do $$ begin {raised}; end $$")["notices"] == [
        {"severity": "NOTICE", "code": "01ABC", "message": "n", "detail": "the detail", "hint": "the hint"}
    ]


def test_commands_of_postgresql_say_what_they_skip_on_both_routes(service: Service) -> None:
    reported = ['table "not_there_at_all" does not exist, skipping']
    assert messages(service.query("drop table if exists not_there_at_all")) == reported
    assert messages(service.post_text("drop table if exists not_there_at_all").json()) == reported


def test_an_answer_without_notices_does_not_mention_them(service: Service) -> None:
    assert "notices" not in service.post_query("select 1").text
    assert "notices" not in post(service, "select 1").text


def test_each_request_of_a_connection_has_its_own_notices(service: Service) -> None:
    for round_ in range(ROUNDS):
        assert messages(service.query("select say($1)", f"round {round_}")) == [f"round {round_}"]
        assert messages(service.query("select $1::text", "quiet")) == []
        assert messages(service.query("select say('literal')")) == ["literal"]


def test_each_statement_of_a_transaction_has_its_own_notices(service: Service) -> None:
    statements: list[Sent] = ["select say('one')", "select 2", with_params("select say($1)", "three")]
    for _ in range(ROUNDS):
        answer = run(service, *statements)
        assert [messages(result) for result in answer["results"]] == [["one"], [], ["three"]]
        assert "notices" not in answer


def test_what_is_raised_at_the_commit_belongs_to_the_transaction(service: Service) -> None:
    service.query("create table noticed_late (n int)")
    service.query(
        "create function say_late() returns trigger language plpgsql as"
        " $$ begin raise notice 'late %', new.n; return null; end $$"
    )
    service.query(
        "create constraint trigger late after insert on noticed_late deferrable initially deferred"
        " for each row execute function say_late()"
    )
    for _ in range(ROUNDS):
        assert messages(service.query("insert into noticed_late values (1)")) == ["late 1"]
        answer = run(service, "insert into noticed_late values (2)", "select 1")
        assert messages(answer) == ["late 2"]
        assert [messages(result) for result in answer["results"]] == [[], []]


def test_a_transaction_over_several_databases_returns_the_notices_of_each(service: Service) -> None:
    statements = [{"sql": "select say('here')"}, {"sql": "select say('there')", "database": "second"}]
    assert [messages(result) for result in run(service, *statements)["results"]] == [["here"], ["there"]]


def test_a_dry_run_and_a_replayed_answer_have_them_too(service: Service) -> None:
    assert [messages(each) for each in run(service, "select say('dry')", dry_run=True)["results"]] == [["dry"]]
    body = {"sql": "select say('once')"}
    twice = [
        service.call("POST", "/v1/query", json=body, headers={"Idempotency-Key": "notices-once"}) for _ in range(2)
    ]
    assert [messages(response.json()) for response in twice] == [["once"], ["once"]]
    assert twice[1].headers["idempotency-replayed"] == "true"


def test_a_stream_ends_with_its_notices(service: Service) -> None:
    sql = "select say('row ' || n) from generate_series(1, 2) n"
    events = service.call("POST", "/v1/query", headers={"Accept": "text/event-stream"}, json={"sql": sql})
    assert messages(EventParser().feed(events.content)[-1].content) == ["row 1", "row 2"]
    lines = service.call("POST", "/v1/query", headers={"Accept": "application/x-ndjson"}, json={"sql": sql})
    assert messages(json.loads(lines.text.splitlines()[-1])) == ["row 1", "row 2"]


def test_a_failure_returns_what_was_raised_before_it(service: Service) -> None:
    failing = "do $$ begin raise notice 'first'; raise warning 'second'; perform 1 / 0; end $$"
    for _ in range(ROUNDS):
        assert service.post_query(failing).json()["notices"] == RAISED
        failed = post(service, "select say('one')", failing).json()
        assert failed["error"]["statement_index"] == 1
        assert failed["notices"] == RAISED


def test_a_stream_that_fails_ends_with_them_too(service: Service) -> None:
    sql = "select say('row ' || n), 1 / (n - 3) from generate_series(1, 3) n"
    events = service.call("POST", "/v1/query", headers={"Accept": "text/event-stream"}, json={"sql": sql})
    last = EventParser().feed(events.content)[-1]
    assert (last.type, messages(last.content)) == ("error", ["row 1", "row 2", "row 3"])


def test_more_than_a_hundred_notices_are_counted(service: Service) -> None:
    answer = service.query("do $$ begin for i in 1..250 loop raise notice '%', i; end loop; end $$")
    assert messages(answer) == [str(number) for number in range(1, 101)]
    assert answer["notices_omitted"] == 150


def test_the_statements_of_a_transaction_share_the_limit(service: Service) -> None:
    many = "do $$ begin for i in 1..60 loop raise notice '%', i; end loop; end $$"
    first, second = run(service, many, many)["results"]
    assert (len(first["notices"]), first.get("notices_omitted")) == (60, None)
    assert (len(second["notices"]), second["notices_omitted"]) == (40, 20)


def test_more_than_64_kib_of_notices_are_counted(service: Service) -> None:
    answer = service.query("do $$ begin for i in 1..9 loop raise notice '%', repeat('x', 10000); end loop; end $$")
    assert (len(answer["notices"]), answer["notices_omitted"]) == (6, 3)


def test_messages_of_the_server_about_itself_are_not_notices(service: Service) -> None:
    """With a key, the service runs statements of its own in the transaction, whose plans would show a secret."""
    talkative = [
        f"select set_config('{name}', '{value}', true)"
        for name, value in (("client_min_messages", "debug5"), ("debug_print_plan", "on"), ("debug_print_parse", "on"))
    ]
    sent = [*talkative, "do $$ begin raise log 'logged'; raise debug 'debugged'; raise info 'informed'; end $$"]
    answer = post(service, *sent, headers={"Idempotency-Key": "talkative"}).json()
    assert answer["success"], answer
    assert [messages(result) for result in answer["results"]] == [[], [], [], ["informed"]]
    assert messages(answer) == []
