"""Frozen INSERTs where customers have made operators, casts and types of their own, or changed settings.

The rows must be exactly those that were rehearsed, or the INSERT is not frozen. All of it is in a database of its own,
because a cast counts in the whole database.
"""

from typing import Any

import pytest

from server.tests.end_to_end.transactions import Sent, run, with_params
from server.tests.service import Service

DATABASE = "frozen-traps"

MADE = """
create table seen (n int);
create table t (id int generated always as identity, v text, n float8, xs text[], x xml);
create table other (id int generated always as identity, v text);
create type pair as (a int, b text);
create type mood as enum ('sad', 'happy');
create table moody (id int generated always as identity, m mood);
create table numbered (id int generated always as identity, x xid8 default pg_current_xact_id());
create table documented (id int generated always as identity, x xml default query_to_xml('table seen', true, true, ''));
create function counted(int, int) returns int language sql as 'select count(*)::int from seen';
create function is_like(int, text) returns bool language sql as 'select exists (select from seen)';
create function total(pair) returns int language sql as 'select count(*)::int from seen';
create operator <<< (leftarg = int, rightarg = int, function = counted);
create operator ~~ (leftarg = int, rightarg = text, function = is_like);
create operator !!! (rightarg = oid, function = lo_create)
"""


@pytest.fixture(scope="module")
def service(service: Service) -> Service:
    service.customers.add_database(DATABASE)
    for statement in MADE.strip().split(";\n"):
        service.query(statement, database=DATABASE)
    return service


def freeze(service: Service, sql: str, *params: Any, before: tuple[Sent, ...] = ()) -> dict[str, Any]:
    """The result of an INSERT that is frozen in a dry run."""
    insert = with_params(sql, *params, freeze=True, digest=True)
    answer = run(service, *before, insert, dry_run=True, database=DATABASE)
    result: dict[str, Any] = answer["results"][len(before)]
    return {**result, "now": answer["transaction"]["now"]}


def commit(service: Service, result: dict[str, Any], before: tuple[Sent, ...] = ()) -> dict[str, Any]:
    """Runs the frozen statement, whose result must be the one that was rehearsed."""
    assert result["frozen"] is not None, result["frozen_reason"]
    statement = {**result["frozen"], "expect": {"digest": result["digest"]}}
    statement.pop("mergeable")
    answer = run(service, *before, statement, nows=[result["now"]], database=DATABASE)
    committed: dict[str, Any] = answer["results"][-1]
    return committed


REFUSED = [
    ("insert into t (n) values (1 <<< 2)", "calls_code"),
    ("insert into t (n) values (1 operator(public.<<<) 2)", "calls_code"),
    ("insert into t (n) values (- 1 <<<-2)", "calls_code"),
    ("insert into t (v) values ((1 like 'x')::text)", "calls_code"),
    ("insert into t (n) values ((!!! 0::oid)::int8)", "calls_code"),
    ("insert into t (n) values ((row(1, 'a')::pair).total)", "calls_code"),
    ("insert into t (n) select (r.s).total from (values (row(1, 'a')::pair)) as r(s)", "calls_code"),
    ("insert into t (n) values (lo_from_bytea(0, 'a')::int8)", "unrepeatable"),
    ("insert into t (v) values (set_config('extra_float_digits', '-15', true))", "unrepeatable"),
    ("insert into t (x) values (query_to_xml('table seen', true, true, ''))", "unrepeatable"),
    ("insert into t (x) values (table_to_xml('seen', true, true, ''))", "unrepeatable"),
    ("insert into t (v) values (txid_current()::text)", "unrepeatable"),
    ("insert into t (v) values (current_query())", "unrepeatable"),
    ("insert into numbered default values", "unrepeatable"),
    ("insert into documented default values", "unrepeatable"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_what_may_read_or_belongs_to_the_rehearsal_is_not_frozen(service: Service, sql: str, reason: str) -> None:
    result = freeze(service, sql)
    assert (result["frozen"], result["frozen_reason"]) == (None, reason)


ALLOWED = [
    "insert into t (v, n) values (1 + 2, - 3 * 4) returning *",
    "insert into other (v) values ('a' || clock_timestamp()), (random()::text), (gen_random_uuid()) returning *",
    "insert into other (v) values (('abc'::text).upper) returning *",
    "insert into t (v) values (('a' ilike 'b')::text) returning *",
    "insert into moody (m) values ('sad') returning *",
]  # fmt: skip


@pytest.mark.parametrize("sql", ALLOWED)
def test_operators_and_types_that_nothing_is_made_with_do_no_harm(service: Service, sql: str) -> None:
    result = freeze(service, sql)
    assert commit(service, result)["rows"] == result["rows"]


SETTINGS = [
    ("extra_float_digits = -15", "settings"), ("extra_float_digits = 0", "settings"), ("array_nulls = off", "settings"),
    ("datestyle = 'SQL, DMY'", "settings"), ("intervalstyle = 'sql_standard'", "settings"),
    ("standard_conforming_strings = off", "settings"), ("datestyle = 'ISO, DMY'", None),
    ("timezone = 'Asia/Kolkata'", None),
    ("bytea_output = 'escape'", None), ("intervalstyle = 'iso_8601'", None), ("search_path = ''", None),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "reason"), SETTINGS)
def test_rows_that_a_setting_would_change_are_not_frozen(service: Service, setting: str, reason: str | None) -> None:
    before = (f"set local {setting}",)
    insert = "insert into public.t (v, n, xs) values ('a', 0.1::float8 + 0.2, array['a', null, 'NULL']) returning *"
    result = freeze(service, insert, before=before)
    assert result.get("frozen_reason") == reason
    if reason is None:
        assert commit(service, result, before)["rows"] == result["rows"]


CASTS = [
    ("create function mood_of(text) returns mood language sql as $$ select 'sad'::mood $$;"
     "create cast (text as mood) with function mood_of(text) as assignment",
     "insert into moody (m) values ($1::text)", ("happy",)),
    ("create function other_of(text) returns other language sql as $$ select row(1, 'x')::other $$;"
     "create cast (text as other) with function other_of(text)",
     "insert into other (v) values ('a') returning *", ()),
    ("create function text_of(other) returns text language sql as $$ select '(7,forged)' $$;"
     "create cast (other as text) with function text_of(other)",
     "insert into other (v) values ('a') returning *", ()),
    ("select 1; create cast (other as text) with inout", "insert into other (v) values ('a')", ()),
]  # fmt: skip


@pytest.mark.parametrize(("made", "insert", "params"), CASTS)
def test_nothing_is_frozen_that_a_cast_could_change(
    service: Service, made: str, insert: str, params: tuple[str, ...]
) -> None:
    if not params:
        assert freeze(service, insert)["frozen"] is not None
    before = tuple(statement.strip() for statement in made.split(";"))
    assert freeze(service, insert, *params, before=before)["frozen_reason"] == "calls_code"
    is_of_the_rows = "other" in before[1]
    elsewhere = freeze(service, "insert into t (v) values ('a')", before=before)
    assert (elsewhere["frozen"] is not None) == (is_of_the_rows and "function" not in before[1])


HOSTILE = """
create schema hostile;
create function hostile.trap(anyelement, anyelement) returns bool language plpgsql as $$ begin raise 'trapped'; end $$;
create function hostile.to_regclass(text) returns regclass language plpgsql as $$ begin raise 'trapped'; end $$;
create function hostile.quote_ident(text) returns text language plpgsql as $$ begin raise 'trapped'; end $$;
create function hostile.unnest(anyarray) returns setof anyelement language plpgsql as $$ begin raise 'trapped'; end $$;
create function hostile.to_char(timestamp, text) returns text language plpgsql as $$ begin raise 'trapped'; end $$;
create function hostile.now() returns timestamptz language plpgsql as $$ begin raise 'trapped'; end $$;
create operator hostile.= (leftarg = anyelement, rightarg = anyelement, function = hostile.trap);
create operator hostile.<> (leftarg = anyelement, rightarg = anyelement, function = hostile.trap);
create domain hostile.text as pg_catalog.text check (false);
create domain hostile.int4 as pg_catalog.int4 check (false);
create type hostile.other as (id pg_catalog.int4, v pg_catalog.text, forged pg_catalog.text)
"""


def test_a_search_path_full_of_traps_is_not_stepped_into(service: Service) -> None:
    before = (*HOSTILE.strip().split(";\n"), "set local search_path = hostile, pg_catalog, public")
    result = freeze(service, "insert into public.other (v) values ('a') returning id, v", before=before)
    assert "public.other" in result["frozen"]["sql"]
    assert commit(service, result, before)["rows"] == result["rows"]
    service.query("drop schema hostile cascade", database=DATABASE)


def test_values_stay_with_their_columns_if_the_table_is_made_again(service: Service) -> None:
    service.query("create table remade (a int, g int generated always as (a * 2) stored, b int)", database=DATABASE)
    result = freeze(service, "insert into remade (a, b) values (1, 2)")
    for statement in (
        "drop table remade",
        "create table remade (b int, g int generated always as (a * 2) stored, a int)",
    ):
        service.query(statement, database=DATABASE)
    commit(service, result)
    assert service.query("select a, g, b from remade", database=DATABASE)["rows"] == [{"a": 1, "g": 2, "b": 2}]


def test_a_row_of_another_form_is_an_error_and_no_other_row(service: Service) -> None:
    service.query("create table altered (a int, b int)", database=DATABASE)
    result = freeze(service, "insert into altered (a, b) values (1, 2)")
    service.query("alter table altered add column c int default 7", database=DATABASE)
    statement = {"sql": result["frozen"]["sql"], "params": result["frozen"]["params"]}
    response = service.call("POST", "/v1/transaction", json={"statements": [statement], "database": DATABASE})
    assert response.json()["error"]["sqlstate"] == "22P02"
    assert service.value("select count(*) from altered", database=DATABASE) == 0
