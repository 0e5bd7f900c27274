"""A key with the scope read cannot write, whatever it sends and however; nor can a request that says `read_only`."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.error_shape import check_shape
from server.tests.end_to_end.transactions import post
from server.tests.events import EventParser
from server.tests.service import Service

WRITES = [
    "insert into {s}.t values (2)",
    "update {s}.t set id = 3",
    "delete from {s}.t",
    "truncate {s}.t",
    "merge into {s}.t using (select 9 as id) as n on n.id = t.id when not matched then insert values (n.id)",
    "create table {s}.u ()",
    "create table {s}.u as select 1",
    "select * into {s}.u from {s}.t",
    "create temp table u ()",
    "create view {s}.v as select 1",
    "create schema {s}_more",
    "drop table {s}.t",
    "alter table {s}.t add column more int",
    "comment on table {s}.t is 'mine'",
    "grant all on {s}.t to public",
    "with new as (insert into {s}.t values (4) returning id) select * from new",
    "explain analyze insert into {s}.t values (5)",
    "select * from {s}.t for update",
    "select {s}.insert_as_owner()",
    "select {s}.insert_after_set_config()",
    "select {s}.insert_after_reset()",
    "select {s}.insert_after_reset() from generate_series(1, 3)",
    "select {s}.insert_and_set_back()",
    "select * from {s}.inserting",
    "with x as materialized (select {s}.insert_after_reset()) select * from x",
    "select nextval('{s}.numbers')",
    "select setval('{s}.numbers', 7)",
    "do $$begin insert into {s}.t values (6); end$$",
    "do $$begin set transaction_read_only = off; insert into {s}.t values (7); end$$",
    "do $$begin reset transaction_read_only; insert into {s}.t values (9); end$$",
    "do $$begin commit; set transaction_read_only = off; insert into {s}.t values (8); end$$",
    "call {s}.insert_in_a_new_transaction()",
    "select set_config('transaction_read_only', 'off', false)",
    "refresh materialized view {s}.copied",
    "vacuum {s}.t",
    "create function {s}.f() returns int language sql as 'select 1'",
    "alter role current_user set search_path = nowhere",
    "alter role current_user password 'mine'",
    "set transaction read write",
    "select lo_create(0)",
    "select lo_from_bytea(0, 'mine')",
]

CHANNELS = ["buffered", "transaction", "text/event-stream"]

# None of these writes, and none may open the way for a write in a later request.
PREPARATIONS = [
    "set default_transaction_read_only = off",
    "set transaction_read_only = off",
    "set session characteristics as transaction read write",
    "select set_config('default_transaction_read_only', 'off', false)",
    "select SET_CONFIG('default_transaction_read_only', 'off', false)",
    "reset all",
    "prepare write_it as insert into {s}.t values (10)",
    "set session authorization default",
    "reset role",
]


@dataclass(frozen=True)
class ReadSchema:
    """The schema that must not change, and a look at it past the service.

    All looks are on one connection: there are two in each test, and a new backend costs more than a look.
    """

    name: str
    engine: psycopg.Connection

    def __str__(self) -> str:
        return self.name

    def state(self) -> list[list[Any]]:
        """Everything that a write could have changed."""
        return [
            self.engine.execute(looked.encode()).fetchall()
            for looked in (
                f"select id from {self}.t",
                f"select last_value, is_called from {self}.numbers",
                "select count(*) from pg_largeobject_metadata",
                "select relname, relacl from pg_class where oid >= 16384 order by oid",
                "select nspname from pg_namespace order by 1",
                "select rolname, rolpassword from pg_authid order by 1",
                "select * from pg_db_role_setting",
            )
        ]


@pytest.fixture(scope="module")
def schema(service: Service) -> Iterator[ReadSchema]:
    name = f"read_only_{secrets.token_hex(4)}"
    for sql in (
        "create schema {s}",
        "create table {s}.t (id int)",
        "insert into {s}.t values (1)",
        "create sequence {s}.numbers",
        "create materialized view {s}.copied as select * from {s}.t",
        "create function {s}.insert_as_owner() returns void language sql security definer as"
        " 'insert into {s}.t values (11)'",
        "create function {s}.insert_after_set_config() returns void language plpgsql security definer as"
        " $$begin perform set_config('transaction_read_only', 'off', true); insert into {s}.t values (12); end$$",
        "create function {s}.insert_after_reset() returns int language plpgsql security definer as"
        " $$begin reset transaction_read_only; insert into {s}.t values (14); return 1; end$$",
        "create function {s}.insert_and_set_back() returns int language plpgsql security definer as"
        " $$begin reset transaction_read_only; insert into {s}.t values (15);"
        " set transaction_read_only = on; return 1; end$$",
        "create view {s}.inserting as select {s}.insert_after_reset()",
        "create procedure {s}.insert_in_a_new_transaction() language plpgsql as"
        " $$begin commit; insert into {s}.t values (13); end$$",
    ):
        service.query(sql.format(s=name))
    with service.engine() as engine:
        yield ReadSchema(name, engine)


@pytest.fixture
def read_key(service: Service) -> str:
    return tenants.read_key(service)


def ask(service: Service, key: str, sql: str, **fields: Any) -> dict[str, Any]:
    response = service.call("POST", "/v1/query", key=key, json={"sql": sql, **fields})
    if not response.json()["success"]:
        return check_shape(response)
    answer: dict[str, Any] = response.json()
    return answer


def is_refused(service: Service, channel: str, key: str, sql: str, **fields: Any) -> bool:
    if channel == "transaction":
        return not post(service, sql, key=key, **fields).json()["success"]
    if channel == "buffered":
        return not ask(service, key, sql, **fields)["success"]
    response = service.call("POST", "/v1/query", key=key, headers={"Accept": channel}, json={"sql": sql, **fields})
    if response.headers["content-type"].startswith("application/json"):
        return bool(check_shape(response))
    last = EventParser().feed(response.content)[-1]
    assert last.type in ("done", "error")
    return last.type == "error"


@pytest.mark.parametrize("sql", WRITES)
@pytest.mark.parametrize("channel", CHANNELS)
def test_a_read_key_cannot_write(service: Service, schema: ReadSchema, read_key: str, channel: str, sql: str) -> None:
    before = schema.state()
    refused = is_refused(service, channel, read_key, sql.format(s=schema))
    assert schema.state() == before
    assert refused


@pytest.mark.parametrize("sql", WRITES)
@pytest.mark.parametrize("channel", CHANNELS)
def test_a_read_only_request_of_a_write_key_cannot_write(
    service: Service, schema: ReadSchema, channel: str, sql: str
) -> None:
    before = schema.state()
    refused = is_refused(service, channel, "", sql.format(s=schema), read_only=True)
    assert schema.state() == before
    assert refused


def test_a_write_from_a_safe_snapshot_is_never_stored(service: Service, schema: ReadSchema) -> None:
    """A stream is read-only whether or not that was asked for, and what only reads is not watched for conflicts."""
    before = schema.state()
    for function in ("insert_after_reset", "insert_and_set_back"):
        assert is_refused(service, "text/event-stream", "", f"select {schema}.{function}()")
        assert schema.state() == before


@pytest.mark.parametrize("sql", ["select lo_create(0) > 0 as done", "select txid_current() > 0 as done"])
def test_a_stream_still_does_what_takes_a_transaction_id(service: Service, sql: str) -> None:
    response = service.call("POST", "/v1/query", headers={"Accept": "text/event-stream"}, json={"sql": sql})
    events = EventParser().feed(response.content)
    assert [event.type for event in events] == ["columns", "row", "done"]
    assert events[1].content == {"done": True}


@pytest.mark.parametrize("preparation", PREPARATIONS)
def test_a_read_key_cannot_enable_a_later_write(
    service: Service, schema: ReadSchema, read_key: str, preparation: str
) -> None:
    before = schema.state()
    ask(service, read_key, preparation.format(s=schema))
    for write in ("insert into {s}.t values (20)", "execute write_it", "create temp table mine ()"):
        assert ask(service, read_key, write.format(s=schema))["success"] is False
    assert schema.state() == before


def test_a_read_key_cannot_become_the_owner(service: Service, schema: ReadSchema, read_key: str) -> None:
    owner = service.value("select current_user")
    for sql in (f'set role "{owner}"', f'set session authorization "{owner}"'):
        assert ask(service, read_key, sql)["error"]["code"] == "insufficient_privilege"
    assert ask(service, read_key, "select current_user as who")["rows"] != [{"who": owner}]


def test_a_read_key_reads_whatever_the_owner_makes_at_once(service: Service, schema: ReadSchema, read_key: str) -> None:
    assert ask(service, read_key, f"select id from {schema}.t")["rows"] == [{"id": 1}]
    service.query(f"create table {schema}.later as select 42 as answer")
    service.query(f"create schema {schema}_later")
    service.query(f"create table {schema}_later.t as select 43 as answer")
    service.query(f"create view {schema}_later.seen as select answer + 1 as answer from {schema}_later.t")
    assert ask(service, read_key, f"select answer from {schema}.later")["rows"] == [{"answer": 42}]
    assert ask(service, read_key, f"select answer from {schema}_later.seen")["rows"] == [{"answer": 44}]
    assert ask(service, read_key, f"select last_value from {schema}.numbers")["success"]


def test_a_read_key_reads_by_the_text_route_as_well(service: Service, schema: ReadSchema, read_key: str) -> None:
    text = {"Content-Type": "text/plain"}
    read = service.call("POST", "/query", key=read_key, headers=text, content=f"select id from {schema}.t".encode())
    assert read.json()["rows"] == [{"id": 1}]
    write = service.call("POST", "/query", key=read_key, headers=text, content=f"delete from {schema}.t".encode())
    assert check_shape(write)["error"]["code"] == "read_only_sql_transaction"


def test_a_read_only_request_reads_and_leaves_the_next_one_free_to_write(service: Service, schema: ReadSchema) -> None:
    assert service.query(f"select id from {schema}.t where id = $1", 1, read_only=True)["rows"] == [{"id": 1}]
    assert service.query(f"create table {schema}.written as select 1 as a", read_only=False)["success"]
    assert service.query(f"insert into {schema}.written values (2)")["affected_rows"] == 1


@pytest.mark.parametrize("channel", CHANNELS)
def test_the_refusal_of_a_write_names_the_scope(service: Service, schema: ReadSchema, channel: str) -> None:
    key, sql = tenants.read_key(service), f"insert into {schema}.t values (2)"
    if channel == "transaction":
        failed = post(service, sql, key=key)
    else:
        accept = {"Accept": "application/json" if channel == "buffered" else channel}
        failed = service.call("POST", "/v1/query", key=key, json={"sql": sql}, headers=accept)
    hint = check_shape(failed)["error"]["hint"]
    assert "scope read" in hint
    assert "scope write" in hint


def test_a_write_that_the_request_itself_forbids_says_nothing_of_scopes(service: Service, schema: ReadSchema) -> None:
    failed = service.post_query(f"insert into {schema}.t values (2)", read_only=True)
    assert "hint" not in check_shape(failed)["error"]
