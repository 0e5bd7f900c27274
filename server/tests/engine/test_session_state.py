"""What a statement can leave behind, judged by its text: what is proven harmless, and every way to hide.

A statement that is judged too mildly leaks state from one request to the next, so each hiding place that somebody
thought of is in a table here. One that is judged too harshly only costs time; the ordinary ones must not be.
"""

import time

import psycopg
import pytest

from plainsql_server.core.sql_text import first_words
from plainsql_server.engine.connection import session_state
from plainsql_server.engine.connection.session_state import SessionState

pytestmark = pytest.mark.unit

HARMLESS = [
    "select 1",
    "SELECT * FROM t WHERE id = $1",
    "select id from t where id in (1, 2) and (a, b) = (1, 2)",
    "select count(*) from t",
    "select a, count(*) filter (where b) over (partition by a order by c) from t group by (a)",
    "select Coalesce(a, 'x'), UPPER(b), now() from t",
    "select extract(epoch from a), cast(b as numeric(10, 2)), c::varchar(3) from t",
    "select * from t join u using (id) where exists (select from v)",
    "select x from unnest(array[1, 2]) as x where x = any (array[1])",
    "select * from generate_series(1, 3) union all (select 4) order by 1 limit (2)",
    "values (1), (2)",
    "table t",
    "  \n select 1 ;",
]
SEQUENCES_ONLY = [
    "insert into t values (1)",
    "INSERT INTO t (a, b) VALUES ($1, $2)",
    'insert into "My table" (a) values (1) on conflict (a) do update set a = excluded.a returning a',
    "insert into public.t(a) select 1",
    "update t set a = a + 1 where id = $1",
    "update t set (a, b) = (1, 2) where id in (1)",
    "delete from t where id = $1",
    "with new as (select 1) select * from new",
    "merge into t using u on t.id = u.id when matched then update set a = 1",
    "insert into t values ('gone into the night')",
    "update t set a = 'into'",
]
CALLS = [
    "select set_config('app.x', '1', false)",
    "select SET_CONFIG('app.x', '1', false)",
    "select set_config ('app.x', '1', false)",
    "select set_config\n\t('app.x', '1', false)",
    "select set_config/**/('app.x', '1', false)",
    "select set_config/* /* nested */ */('app.x', '1', false)",
    "select set_config--\n('app.x', '1', false)",
    "select pg_catalog.set_config('app.x', '1', false)",
    "select pg_catalog . set_config ('app.x', '1', false)",
    "select \"set_config\"('app.x', '1', false)",
    "select pg_catalog.\"set_config\" ('app.x', '1', false)",
    "select U&\"set\\005fconfig\"('app.x', '1', false)",
    "select u&\"set\\005fconfig\" ('app.x', '1', false)",
    "select U&\"set!005fconfig\" uescape '!' ('app.x', '1', false)",
    "select U&\"set!005fconfig\"UESCAPE'!'('app.x', '1', false)",
    "select 1 order by set_config('app.x', '1', false)",
    "select 1 group by set_config('app.x', '1', false)",
    "select 1 having set_config('app.x', '1', false) = '1'",
    "select 1 limit length(set_config('app.x', '1', false))",
    "select count(*) filter (where set_config('app.x', '1', false) = '1')",
    "select sum(1) over (order by set_config('app.x', '1', false))",
    "select 1 from t window w as (order by set_config('app.x', '1', false))",
    "select case when true then set_config('app.x', '1', false) end",
    "select (set_config('app.x', '1', false))::int",
    "select cast(set_config('app.x', '1', false) as int)",
    "select 1 + - + set_config('app.x', '1', false)::int",
    "select 'a' operator(pg_catalog.||) set_config('app.x', '1', false)",
    "select * from t, lateral set_config('app.x', t.a, false)",
    "select * from rows from (set_config('app.x', '1', false)) with ordinality",
    "select * from t join u on set_config('app.x', '1', false) = '1'",
    "select * from t tablesample bernoulli (length(set_config('app.x', '1', false)))",
    "select array[set_config('app.x', '1', false)]",
    "select row(set_config('app.x', '1', false))",
    "select (select set_config('app.x', '1', false))",
    "select query_to_xml('select 1', true, false, '')",
    "select currval('numbers')",
    "select lastval()",
    "select nextval('numbers')",
    "values (set_config('app.x', '1', false))",
    "with x as (select set_config('app.x', '1', false)) select * from x",
    "with x as (insert into t values (nextval('numbers')) returning set_config('app.x', a, false)) table x",
    "insert into t values (set_config('app.x', '1', false))",
    "insert into t (a) values (set_config('app.x', '1', false))",
    "insert into set_config (a) values (set_config('app.x', '1', false))",
    "insert into t values (1) returning set_config('app.x', '1', false)",
    "insert into t values (1) on conflict (a) do update set a = set_config('app.x', '1', false)",
    "insert into t values (1) on conflict (a) do update set a = 1 where set_config('app.x', '1', false) = '1'",
    "insert into t values (1) on conflict (lower(set_config('app.x', '1', false))) do nothing",
    "update t set a = set_config('app.x', '1', false)",
    "update t set (a, b) = (select set_config('app.x', '1', false), 1)",
    "delete from t using set_config('app.x', '1', false)",
    "delete from t where set_config('app.x', '1', false) = '1'",
    "merge into t using u on set_config('app.x', '1', false) = '1' when matched then delete",
]
# x.f is another way to write f(x), for every function with one parameter.
CALLS_WITHOUT_PARENTHESES = [
    "select ('numbers'::regclass).nextval",
    "select ('numbers'::regclass) . \"nextval\"",
    "select ('numbers'::regclass)\n.nextval",
    "select (array['numbers'::regclass])[1].nextval",
    "select t.names[1].nextval from t",
    "select $1.nextval",
    "select $1 . ts_stat",
    "select ('select to_tsvector(set_config' || chr(40) || '''app.x'', ''1'', false))').ts_stat",
    "insert into t values ((select 'numbers'::regclass).nextval)",
    "select s.nextval from unnest(array['numbers'::regclass]) as s",
    "select s.ts_stat from unnest(array['select to_tsvector(set_config' || chr(40) || '1, 2, 3))']) as s",
    'select s."ts_stat" from unnest($1::text[]) as s',
    "select s.setseed from unnest(array[0.5::float8]) as s",
]
# The view's rule for UPDATE calls set_config.
SETTINGS_VIEW = [
    "update pg_settings set setting = '7' where name = 'statement_timeout'",
    "update pg_catalog.pg_settings set setting = '7'",
    'update "pg_settings" set setting = $1',
    "UPDATE PG_SETTINGS SET setting = '7'",
    "update only pg_settings as s set setting = '7'",
    "update U&\"pg\\005fsettings\" set setting = '7'",
    "update U&\"pg!005fsettings\" uescape '!' set setting = '7'",
    "with x as (update pg_settings set setting = '7' returning 1) select 1",
]
TABLES_MADE_BY_SELECT = [
    "select 1 as a into temp made",
    "SELECT 1 AS a INTO TEMPORARY made",
    "select 1 as a into local temp made",
    "select 1 as a into pg_temp.made",
    "select 1 as a into table pg_temp.made",
    "select 1 as a into made",
    "select 1 as a\ninto\ntemp\nmade",
    "select 1 as a/**/into/**/temp made",
    "select 1 as a --\ninto temp made",
    "select 'a'into temp made",
    'select 1 as "a"into temp made',
    "select $$a$$into temp made",
    "with x as (select 1 as a) select a into temp made from x",
    "with x as (insert into t values (1) returning a) select a into temp made from x",
    "select 1 as insert into temp made",
    "select 1 insert into temp made",
    "select (1) as merge into temp made",
    "select t.insert into temp made from t",
    "with x as (select 1 as a) select a as insert into temp made from x",
    "with x as (select 1 as a) select (a) merge into pg_temp.made from x",
]
OTHER_COMMANDS = [
    "set work_mem = '1MB'",
    "reset all",
    "prepare p as select 1",
    "execute p",
    "deallocate all",
    "declare c cursor with hold for select 1",
    "create temp table t ()",
    "do $$begin end$$",
    "call p()",
    "(select set_config('app.x', '1', false))",
    "explain analyze select set_config('app.x', '1', false)",
    "/* select */ set role none",
    "-- select\nset role none",
    "discard plans",
    "selectx 1",
    "",
]

STORES_CODE = [
    "create function f() returns int language sql as 'select 1'",
    "create or replace function f() returns int language sql as 'select 1'",
    "create procedure p() language sql as ''",
    "create view v as select 1",
    "create recursive view v (a) as select 1",
    "create materialized view v as select 1",
    "create trigger g before insert on t execute function f()",
    "create rule r as on insert to t do also select set_config('app.x', '1', false)",
    "create policy p on t using (set_config('app.x', '1', false) = '1')",
    "create domain d as text check (set_config('app.x', value, false) = '1')",
    "create aggregate a (int) (sfunc = f, stype = int)",
    "create operator === (leftarg = int, rightarg = int, function = f)",
    "create cast (int as text) with function f(int)",
    "create extension pgcrypto",
    "alter role current_user set work_mem = '1MB'",
    "alter function f() set work_mem = '1MB'",
    "alter domain d add check (set_config('app.x', value, false) = '1')",
    "do $$begin create view v as select 1; end$$",
    "/* create table t () */ create view v as select 1",
    "create table t (a text default set_config('app.x', '1', false))",
    "create table t (a text default set_config/**/('app.x', '1', false))",
    "create table t (a text default \"set_config\"('app.x', '1', false))",
    "create table t (a text default U&\"set!005fconfig\" uescape '!' ('app.x', '1', false))",
    "create table t (a text default ' on \"' || set_config('app.x', '1', false) || '\"(')",
    "create table t (a text default $$ using \"$$ || set_config('app.x', '1', false) || $$\"($$)",
    "create table t (a text default 'table ' || $$a\"$$ || set_config('app.x', '1', false) || '\"(')",
    "create table t (a text check (set_config('app.x', a, false) = '1'))",
    "create table t (a bigint default lastval())",
    "create table t (a text default ('0.5'::float8).setseed::text)",
    "create temp table t (a text default set_config('app.x', '1', false))",
    "create unlogged table t (a text default set_config('app.x', '1', false))",
    "alter table t alter a set default set_config('app.x', '1', false)",
    "alter table t add b text default set_config('app.x', '1', false)",
    "alter table t add constraint c check (set_config('app.x', a, false) = '1')",
    "create schema s create view v as select set_config('app.x', '1', false)",
    "create schema s create view v as select * from pg_settings",
]
STORES_NO_CODE = [
    "create table t (id serial primary key, a text not null default 'x', b numeric(10, 2) default 0)",
    "create table if not exists public.t (id int generated always as identity (start with 10), unique (id))",
    'create table "My table" ("A column" varchar(10) check (length("A column") > 2))',
    "create table t (a int references u (id) on delete cascade, foreign key (a) references u (id))",
    "create table t (id bigint default nextval('numbers'), made timestamptz default now())",
    "create table t (id uuid default gen_random_uuid())",
    "create table t as select 1 as a",
    "create temp table t (a int)",
    "create index on t (a)",
    "create unique index concurrently i on public.t using btree (lower(a)) include (b)",
    "create sequence numbers",
    "create schema s",
    "create type mood as enum ('sad', 'happy')",
    "alter table t add column c int default 0",
    "alter table t add constraint c check (a > 0)",
    "alter table t rename to u",
    "comment on table t is 'mine'",
    "drop table t",
    "truncate t",
    "set work_mem = '1MB'",
    "show work_mem",
    "vacuum t",
    "grant select on t to public",
    "select set_config('app.x', '1', false)",
    "insert into t values (1)",
    "with x as (select 1) delete from t",
]
# None of these stores anything, and calling them storers of code slows the database down for the rest of its life.
NO_REASON_TO_LOSE_PLAINNESS = [
    "",
    ";",
    "-- nothing",
    "(select 1) union (select 2)",
    "((select 1))",
    "explain select 1",
    "explain (analyze, buffers) select * from t where id = $1",
    "selec 1",
    "creat view v as select 1",
    "prepare p as select 1",
    "execute p",
    "123",
]

# Functions of PostgreSQL's that are volatile only because their answer differs each time.
CHANGE_NOTHING = {"clock_timestamp", "gen_random_uuid", "random", "timeofday"}


def state_left_by(sql: str, *, without_code: bool) -> SessionState:
    return session_state.state_left_by(first_words(sql), sql, without_code=without_code)


def may_store_code(sql: str) -> bool:
    return session_state.may_store_code(first_words(sql), sql)


@pytest.mark.parametrize("sql", HARMLESS)
def test_a_query_without_foreign_calls_is_proven_harmless(sql: str) -> None:
    assert state_left_by(sql, without_code=True) is SessionState.NOTHING


@pytest.mark.parametrize("sql", SEQUENCES_ONLY)
def test_a_change_of_rows_may_only_have_moved_sequences(sql: str) -> None:
    assert state_left_by(sql, without_code=True) is SessionState.SEQUENCES


@pytest.mark.parametrize("sql", HARMLESS + SEQUENCES_ONLY)
def test_no_statement_is_harmless_if_customer_code_may_run(sql: str) -> None:
    assert state_left_by(sql, without_code=False) >= SessionState.SESSION


@pytest.mark.parametrize("sql", CALLS)
def test_a_call_is_found_at_any_position(sql: str) -> None:
    assert state_left_by(sql, without_code=True) >= SessionState.SESSION


@pytest.mark.parametrize("sql", CALLS_WITHOUT_PARENTHESES)
def test_a_call_in_the_notation_of_a_column_is_found(sql: str) -> None:
    assert state_left_by(sql, without_code=True) >= SessionState.SESSION


@pytest.mark.parametrize("sql", SETTINGS_VIEW)
def test_an_update_of_the_settings_view_is_found(sql: str) -> None:
    assert state_left_by(sql, without_code=True) >= SessionState.SESSION


@pytest.mark.parametrize("sql", TABLES_MADE_BY_SELECT)
def test_a_select_that_makes_a_table_is_found(sql: str) -> None:
    assert state_left_by(sql, without_code=True) >= SessionState.SESSION


@pytest.mark.parametrize("sql", OTHER_COMMANDS)
@pytest.mark.parametrize("without_code", [True, False])
def test_other_statements_may_leave_any_session_state(sql: str, without_code: bool) -> None:
    assert state_left_by(sql, without_code=without_code) is SessionState.EVERYTHING


@pytest.mark.parametrize("sql", STORES_CODE)
def test_a_command_that_could_store_code_is_found(sql: str) -> None:
    assert may_store_code(sql)


@pytest.mark.parametrize("sql", STORES_NO_CODE)
def test_an_ordinary_command_leaves_the_database_without_code(sql: str) -> None:
    assert not may_store_code(sql)


@pytest.mark.parametrize("sql", NO_REASON_TO_LOSE_PLAINNESS)
def test_a_misspelled_statement_cannot_store_code(sql: str) -> None:
    assert not may_store_code(sql)


def test_no_function_of_postgresqls_that_changes_something_is_taken_for_harmless(engine: psycopg.Connection) -> None:
    names = engine.execute(
        "select distinct proname from pg_proc where pronamespace = 'pg_catalog'::regnamespace and provolatile = 'v'"
    ).fetchall()
    assert len(names) > 100
    harmless = {
        name for (name,) in names if state_left_by(f"select {name}(1)", without_code=True) < SessionState.SESSION
    }
    assert harmless <= CHANGE_NOTHING


def test_postgresql_really_executes_the_hidden_calls(engine: psycopg.Connection) -> None:
    """What PostgreSQL does with the oddest of these texts, so that nobody takes them for impossible."""
    with engine.transaction(force_rollback=True):
        engine.execute("create sequence numbers")
        engine.execute("select U&\"set!005fconfig\" uescape '!' ('app.hidden', '1', false)")
        engine.execute("update pg_settings set setting = '7001' where name = 'lock_timeout'")
        engine.execute("select 1 insert into temp made")
        for call in (*CALLS_WITHOUT_PARENTHESES[:4], CALLS_WITHOUT_PARENTHESES[9]):
            engine.execute(call)
        seen = engine.execute(
            "select current_setting('app.hidden'), current_setting('lock_timeout'), to_regclass('pg_temp.made')"
            " is not null, lastval()"
        ).fetchone()
        assert seen == ("1", "7001ms", True, 5)


MEGABYTE = 1024 * 1024
# Each would make a careless pattern look at the same characters again and again.
DEAR = ["a", "1", "$", "\u20ac", "a ", '" ', "abs(", "a.", "table a.", "on on ", 'on "on ', "nextval ", "-", " "]


@pytest.mark.timing
@pytest.mark.parametrize("chunk", DEAR)
@pytest.mark.parametrize("beginning", ["select ", "insert into ", "create table t ", "create index on a"])
def test_no_text_takes_long_to_classify(chunk: str, beginning: str) -> None:
    for length in (64 * 1024, MEGABYTE):
        sql = (beginning + chunk * length)[:length]
        began_s = time.process_time()
        state_left_by(sql, without_code=True)
        may_store_code(sql)
        # A tenth of that on a machine that is not busy. One identifier of 20,000 letters took seconds once.
        assert time.process_time() - began_s < 0.5


@pytest.mark.parametrize("name", ["set_config", "1set_config", "$1set_config", "\u20acset_config", "a\u20acset_config"])
def test_a_call_is_found_whatever_precedes_its_name(name: str) -> None:
    assert state_left_by(f"select 1,{name}('a.b', 'c', false)", without_code=True) is SessionState.SESSION


def test_a_long_statement_is_not_proven_harmless() -> None:
    assert state_left_by("select " + "1," * MEGABYTE + "1", without_code=True) is SessionState.SESSION
    assert may_store_code("create table t (" + "a int," * MEGABYTE)
