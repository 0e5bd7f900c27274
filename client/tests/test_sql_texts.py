"""How SQL text is classified: ordered, locking, of the catalogue alone, a savepoint, and so on."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql.interactive.texts import (
    calls_only_known,
    changes_schema,
    draws_number,
    has_returning,
    is_ordered,
    is_read,
    is_select,
    mentions_oids,
    reads_no_table,
    returns_columns,
    savepoint_in,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * from t order by id", True),
        ("select * from t ORDER\n BY id limit 1", True),
        ("select * from (select * from t order by id) x", False),
        ("select array_agg(a order by b) from t", False),
        ("select 'order by' from t -- order by x", False),
        ("select 1 as \"order by\", E'\\' order by ' from t", False),
        ("select * from t where x = $$ order by $$", False),
        ("(select 1) union (select 2) order by 1", True),
    ],
)
def test_an_order_counts_only_outside_parentheses_and_strings(sql: str, expected: bool) -> None:
    assert is_ordered(sql) is expected


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        "select 'x' as a, $1::int",
        "show search_path",
        "select pg_catalog.version()",
        "select random(), clock_timestamp()",
        "select current_schema()",
        "select relname from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace",
        "select c.relname from pg_class c, pg_namespace n where n.oid = c.relnamespace order by 1",
        "select * from information_schema.tables where table_name = 'users, notes'",
        "select (select count(*) from pg_catalog.pg_index i where i.indrelid = c.oid) from pg_catalog.pg_class as c",
        "select 1 from (select 2 from pg_catalog.pg_type) as x",
        "with a as (select oid from pg_catalog.pg_class) select * from a join pg_catalog.pg_attribute on true",
        "select * from pg_catalog.pg_class join (pg_catalog.pg_index join pg_catalog.pg_attribute on true) on true",
        "select attname from pg_catalog.pg_attribute, lateral unnest(attacl) as u",
        "select 2 * -1, 3*-1, 1 <=-2, 'a' || 'b' --+@\n, 7%2/*+@*/",
    ],
)
def test_reads_of_the_catalogue_alone_are_recognized(sql: str) -> None:
    assert reads_no_table(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from users",
        "table users",
        "select count_of_users()",
        "select app.count_of_users() from pg_catalog.pg_class",
        "select nextval('s'), pg_catalog.nextval('s')",
        "select pg_catalog.query_to_xml('select * from users', true, true, '')",
        "select * from pg_catalog.pg_class, users",
        "select * from pg_catalog.pg_class as c, lateral (select 1 from users) u",
        "select (select count(*) from users) from pg_catalog.pg_class",
        "select 1 from pg_catalog.pg_class where exists (select from users)",
        "select * from pg_catalog.pg_class join (users join pg_catalog.pg_index on true) on true",
        "with a as (select * from users) select * from a",
        "select * from pg_users",
        'select * from "pg_catalog.pg_class"',
        "select 1 from pg_catalog.pg_class union select 2 from users",
        "explain analyze select * from users",
        "with users as (select * from users where n = 1) select sum(n) from users",
        "with x as (with users as (select 1) select 1) select * from x, users",
        "with x as (select 1) select 1 window users as () union select n from users",
        "with f as (select 1) select f(2) from f",
        "select pg_catalog.schema_to_xml('public', true, true, '')",
        "select * from pg_catalog.ts_stat('select words from users')",
        "select pg_get_balance(1)",
        "select 1 +@ 2",
        "select 1 operator(app.+) 2",
        "select relname from pg_class where relname <-> 'a' < 1",
    ],
)
def test_any_other_read_is_verified(sql: str) -> None:
    assert not reads_no_table(sql)


def test_statements_differ_by_their_words() -> None:
    assert [changes_schema(sql) for sql in ("create table t ()", "SET x = 1", "insert into t", "call f()")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert draws_number("select nextval('s')")
    assert not draws_number("select nextval('s'), 1 from t")
    assert has_returning("insert into t values (1) Returning id")
    assert not has_returning("insert into t values ('returning')")
    assert returns_columns("insert into t (a) values (1) returning id, b")
    assert not returns_columns("insert into t (a) values (1) returning id, (select 1)")
    for column in ("a || b", "-a", "current_user", "7", "'x'", "a::text", "case when a then b end", "a b"):
        assert not returns_columns(f"insert into t (a) values (1) returning id, {column}")
    assert returns_columns('insert into t (a) values (1) returning *, t.*, "t"."a b" as x, s.t.b;')
    assert not draws_number("select currval('s')")
    assert is_select("select 1 from t for update")
    assert not is_read("select pg_catalog.set_config('app.tenant', '7', true)")
    assert calls_only_known("select max(n), count(*) from t")
    assert not calls_only_known("select credit(1) from t")
    assert not is_select("with x as (delete from t returning 1) select 1")
    assert savepoint_in("rollback") is None
    assert savepoint_in("release savepoint A;") == ("RELEASE", "a")
    assert savepoint_in('ROLLBACK WORK TO "a""B"') == ("ROLLBACK", 'a"B')


def test_a_name_that_begins_like_an_oid_type_is_none() -> None:
    for name in ("regions", "registered", "t.regime"):
        assert not mentions_oids(f"select {name} from t")
    for name in ("a::regclass", "'t'::REGTYPE", "oid", "to_regrole('x')", "pg_class"):
        assert mentions_oids(f"select {name} from t")


@given(st.text(alphabet="'\"$()-/*e \\\nab", max_size=30))
def test_no_text_is_too_strange_to_look_at(text: str) -> None:
    looks: list[Callable[[str], Any]] = [is_read, is_ordered, reads_no_table, has_returning, savepoint_in]
    for look in looks:
        look(f"select {text}")
