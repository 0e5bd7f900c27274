"""No statement takes the transaction out of the service's hands, however it is dressed up.

What is transaction control is refused before anything runs. What cannot be seen in the text is tried for real, at each
place in a transaction: whatever the engine says to it, nothing is committed in part, the isolation stays serializable,
the reported outcome is true, and no connection is left in a transaction.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.transactions import Sent, fresh_table, numbers, post, with_params
from server.tests.events import EventParser
from server.tests.service import Service

REFUSED = [
    "commit", "COMMIT", "CoMmIt", "commit;", "commit -- x", "/* x */ commit", "/* /* x */ */ commit", "/*/**/*/commit",
    "-- x\ncommit", "-- x\rcommit", ";commit", " ; ;\n; commit", "\t\n\r\f\vcommit", "/**/;/**/--\n;commit/**/",
    "commit work", "commit and chain", "commit and no chain", "commit prepared 'x'", "end", "end transaction and chain",
    "abort", "rollback", "rollback and chain", "rollback to a", "rollback to savepoint a", "rollback prepared 'x'",
    "savepoint a", "release a", "begin", "begin isolation level read committed", "start transaction read write",
    "start/**/transaction", "prepare transaction 'x'", "prepare/**/transaction 'x'", "begin; select 1; commit",
    "set transaction isolation level read committed", "set /* x */ transaction read only",
    "SET\nTRANSACTION SNAPSHOT '1'",
]  # fmt: skip

LOWER = "set_config('transaction_isolation', 'read committed', {})"
TRIED = [
    "select 1; commit", "select 1;;commit;", "insert into {t} values (7); commit", "select 1 \n;\n rollback",
    "\ufeffcommit", "\u00a0commit", "\u2028commit", "\u3000commit", "\u200bcommit", "commit\u00a0", '"commit"',
    'U&"commit"', "(commit)", "com/**/mit", "\\commit", "$$commit$$", "commit()", "'commit'",
    "do $$ begin commit; end $$", "do $$ begin rollback; end $$", "do language plpgsql 'begin commit; end'",
    "do $$ begin insert into {t} values (7); commit; insert into {t} values (8); end $$",
    "do $$ begin insert into {t} values (7); rollback; insert into {t} values (8); end $$",
    "do $$ begin execute 'commit'; end $$", "do $$ begin execute 'savepoint a'; end $$",
    "do $$ begin begin insert into {t} values (7); commit; exception when others then null; end; end $$",
    "do $$ begin commit and chain; end $$", "do $$ begin call committing(); end $$",
    "do $$ begin set transaction isolation level read committed; end $$",
    "do $$ begin perform " + LOWER.format("true") + "; end $$",
    "call committing()", "call rolling_back()", "call lowering()", "select lower_isolation()",
    "select loosen()", "explain analyze commit", "explain analyze execute nothing", "explain (analyze) select loosen()",
    "explain analyze insert into {t} values (7)", "prepare sneaky as commit", "execute sneaky", "deallocate all",
    "prepare sneaky(int) as insert into {t} values ($1)", "discard all", "reset all", "reset transaction_isolation",
    "set local transaction_isolation = 'read committed'", "set transaction_isolation = 'read uncommitted'",
    "set transaction_isolation to default", "select set_config('transaction_isolation', null, true)",
    "do $$ begin reset transaction_isolation; end $$", "select reset_isolation()", "reset transaction_read_only",
    "set local transaction_read_only to default", "select set_config('transaction_read_only', null, true)",
    "reset transaction_deferrable", "reset session authorization", "reset role",
    "set session transaction_isolation to 'repeatable read'", "set local transaction isolation level read committed",
    "set session transaction isolation level read committed", "set local transaction read write",
    "set session characteristics as transaction isolation level read committed",
    "set default_transaction_isolation = 'read committed'", "set transaction_deferrable = on",
    "create function f() returns int language sql set transaction_isolation = 'read committed' as 'select 1'",
    "select " + LOWER.format("true"), "select " + LOWER.format("false"), "values (" + LOWER.format("true") + ")",
    "with x as (select " + LOWER.format("true") + ") select * from x", "table lowered", "(select 1)",
    "update pg_settings set setting = 'read committed' where name = 'transaction_isolation'",
    "alter role current_user set default_transaction_isolation = 'read committed'", "lock table {t}",
    "create extension dblink", "select dblink_exec('dbname=x', 'commit')", "vacuum", "checkpoint", "create database x",
    "declare c cursor with hold for select 1", "create table if not exists {t}_x as select 1", "show all",
    "select pg_cancel_backend(pg_backend_pid())", "select pg_terminate_backend(pg_backend_pid())",
    "select pg_export_snapshot()", "set constraints all immediate", "select txid_current()",
]  # fmt: skip

SETUP = [
    "create procedure committing() language plpgsql as $$ begin commit; end $$",
    "create procedure rolling_back() language plpgsql as $$ begin rollback; end $$",
    "create procedure lowering() language plpgsql as $$ begin set transaction isolation level read committed; end $$",
    "create function lower_isolation() returns text language sql as $$ select " + LOWER.format("true") + " $$",
    "create function loosen() returns text language plpgsql as $$ begin"
    " return set_config('transaction_read_only', 'off', true); end $$",
    "create function reset_isolation() returns int language plpgsql as"
    " $$ begin reset transaction_isolation; return 1; end $$",
    "create view lowered as select lower_isolation()",
]
PROBE = "select current_setting('transaction_isolation') as isolation, current_setting('transaction_read_only') as ro"


@dataclass(frozen=True)
class Attacked:
    """A table that transactions write to, and a look at the engine past the service."""

    service: Service
    table: str
    engine: "psycopg.Connection[tuple[Any, ...]]"

    def rows(self) -> set[int]:
        return set(numbers(self.service, self.table))

    def clear(self) -> None:
        self.service.query(f"truncate {self.table}")

    def check_sound(self) -> None:
        """The next request has a sound session, and none is left in a transaction."""
        answer = self.service.query(PROBE)["rows"]
        assert answer == [{"isolation": "serializable", "ro": "off"}]
        end_s = time.monotonic() + 30
        while left := self._in_transaction():
            assert time.monotonic() < end_s, left
            time.sleep(0.005)

    def _in_transaction(self) -> list[tuple[Any, ...]]:
        return self.engine.execute(
            "select usename, state, query from pg_stat_activity"
            " where state like 'idle in transaction%' and usename ~ '^[or]_'"
        ).fetchall()


@pytest.fixture(scope="module")
def attacked(service: Service) -> Iterator[Attacked]:
    for sql in SETUP:
        service.query(sql)
    with service.engine() as engine:
        yield Attacked(service, fresh_table(service), engine)
    service.query("alter role current_user reset default_transaction_isolation")


def around(table: str, statement: str, position: int) -> list[Sent]:
    statements: list[Sent] = [f"insert into {table} values (1)", with_params(f"insert into {table} values ($1)", 2)]
    statements.insert(position, statement.replace("{t}", table))
    return [*statements, PROBE]


@pytest.mark.parametrize("statement", REFUSED)
def test_transaction_control_is_refused_before_anything_runs(attacked: Attacked, statement: str) -> None:
    for position in range(3):
        error = error_of(
            post(attacked.service, *around(attacked.table, statement, position)), 400, "transaction_control"
        )
        assert (error["statement_index"], error["outcome"]) == (position, "not_executed")
        assert error["hint"]
    error = error_of(attacked.service.post_query(statement), 400, "transaction_control")
    assert "/v1/transaction" in error["hint"]
    assert attacked.rows() == set()
    attacked.check_sound()


@pytest.mark.parametrize("statement", TRIED)
def test_an_attempt_to_end_the_transaction_leaves_it_atomic(attacked: Attacked, statement: str) -> None:
    for position in range(3):
        answer = post(attacked.service, *around(attacked.table, statement, position)).json()
        classify(attacked, answer)


@pytest.mark.parametrize("statement", TRIED)
def test_an_attempt_to_end_the_transaction_does_not_separate_it_from_its_record(
    attacked: Attacked, statement: str
) -> None:
    for position in (0, 2):
        key = secrets.token_hex(8)
        answer = post(attacked.service, *around(attacked.table, statement, position), idempotency_key=key).json()
        recorded = attacked.service.call("GET", f"/v1/requests/{key}").json()["request"]["outcome"]
        assert (recorded == "committed") == answer["success"], answer
        classify(attacked, answer)


def classify(attacked: Attacked, answer: dict[str, Any]) -> None:
    rows = attacked.rows()
    attacked.clear()
    if answer["success"]:
        assert {1, 2} <= rows, "a part was lost"
        assert answer["results"][-1]["rows"] == [{"isolation": "serializable", "ro": "off"}], "weakened"
    else:
        assert answer["error"]["outcome"] in ("rolled_back", "not_executed"), answer
        assert rows == set(), "a part was committed"
    attacked.check_sound()


@pytest.mark.parametrize("statement", TRIED)
def test_a_single_query_leaves_no_transaction_open_either(attacked: Attacked, statement: str) -> None:
    attacked.service.post_query(statement.replace("{t}", attacked.table))
    attacked.check_sound()
    attacked.clear()


@pytest.mark.parametrize("statement", [each for each in TRIED if "terminate" not in each])
def test_a_read_only_transaction_stays_read_only(attacked: Attacked, statement: str) -> None:
    statement = statement.replace("{t}", attacked.table)
    answer = post(attacked.service, statement, PROBE, read_only=True).json()
    if answer["success"]:
        assert answer["results"][1]["rows"] == [{"isolation": "serializable", "ro": "on"}]
    assert not post(attacked.service, statement, f"insert into {attacked.table} values (1)", read_only=True).json()[
        "success"
    ]
    assert attacked.rows() == set()
    attacked.check_sound()


@pytest.mark.parametrize("statement", [each for each in TRIED if "terminate" not in each])
def test_a_stream_stays_read_only_under_every_attempt(attacked: Attacked, statement: str) -> None:
    sql = statement.replace("{t}", attacked.table)
    attacked.service.call(
        "POST", "/v1/query", headers={"Accept": "text/event-stream"}, json={"sql": sql, "read_only": True}
    )
    assert attacked.rows() == set()
    attacked.check_sound()


def test_a_stream_whose_isolation_was_changed_ends_with_an_error(attacked: Attacked) -> None:
    response = attacked.service.call(
        "POST", "/v1/query", headers={"Accept": "text/event-stream"}, json={"sql": "select reset_isolation()"}
    )
    events = EventParser().feed(response.content)
    assert [event.type for event in events] == ["columns", "row", "error"]
    assert events[-1].content["code"] == "transaction_control"
    attacked.check_sound()


def test_a_first_statement_without_a_snapshot_cannot_lower_the_isolation(attacked: Attacked) -> None:
    """Until the first snapshot is taken, the engine would allow it; so the service takes one."""
    for setting in ("transaction_isolation = 'read committed'", "transaction_deferrable = on"):
        error = post(attacked.service, f"set {setting}", PROBE).json()["error"]
        assert (error["sqlstate"], error["statement_index"]) == ("25001", 0)
