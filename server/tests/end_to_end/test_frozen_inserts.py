"""`freeze`: an INSERT in a dry run, and the statement that later inserts exactly the same rows."""

import secrets
from typing import Any

import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.transactions import fresh_table, post, run, with_params
from server.tests.service import Service

# Columns, and values that are hard to repeat. Each is inserted as it is, as the only column beside a key.
KINDS = [
    ("int4", "-2147483648"), ("int8", "9223372036854775807"), ("numeric", "'NaN'"), ("numeric", "'-Infinity'"),
    ("numeric(40,20)", "12345678901234567890.12345678901234567890"), ("float8", "'NaN'"),
    ("float8", "0.1::float8 + 0.2"), ("float4", "'-Infinity'"), ("bool", "false"), ("text", "''"),
    ("text", r"E'a\\b\n\t''\"(,){}\r'"), ("text", "'ä€😀'"), ("text", "null"), ("char(5)", "'a '"),
    ('"char"', "'x'"), ("bytea", r"'\x005c27ff'"), ("uuid", "gen_random_uuid()"),
    ("json", """'{"b": 1,  "a": [1, null, "\\""]}'"""), ("jsonb", "'null'"), ("timestamptz", "'infinity'"),
    ("timestamptz", "now()"), ("timestamp", "'-infinity'"), ("date", "'0044-03-15 BC'"), ("time", "'24:00'"),
    ("timetz", "'10:00:00.5+02'"), ("interval", "'-1 year 2 days -03:04:05.6'"), ("inet", "'10.1.0.0/16'"),
    ("macaddr", "'08:00:2b:01:02:03'"), ("bit varying", "B'0101'"), ("point", "'(0.1,-2)'"),
    ("polygon", "'((0,0),(1,1))'"), ("int4range", "'[1,5)'"), ("tstzrange", "'[2026-01-01,infinity)'"),
    ("int4multirange", "'{[1,3),[5,9)}'"), ("text[]", r"array['a,b', null, '\"', '', 'NULL', E'\\']"),
    ("int4[]", "'[2:3][0:1]={{1,2},{3,4}}'"), ("json[]", """array['{"a": "b"}']::json[]"""),
    ("bytea[]", r"array['\x5c']::bytea[]"), ("tsvector", "'a:1 ''b c'':2A'"), ("money", "'-12.34'"),
    ("xml", "'<a>&amp;</a>'"), ("int4", "default"),
]  # fmt: skip


def freeze(service: Service, sql: str, *params: Any, before: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The result of an INSERT that is frozen in a dry run, and the time of that."""
    answer = run(service, *before, with_params(sql, *params, freeze=True, digest=True), dry_run=True)
    return {**answer["results"][-1], "now": answer["transaction"]["now"]}


def commit(service: Service, result: dict[str, Any], before: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Runs the frozen statement, whose result must be the one that was rehearsed."""
    frozen = result["frozen"]
    statement = {"sql": frozen["sql"], "params": frozen["params"], "expect": {"digest": result["digest"]}}
    committed: dict[str, Any] = run(service, *before, statement, nows=[result["now"]])["results"][-1]
    return committed


def texts(service: Service, table: str) -> list[str]:
    return [row["row"] for row in service.query(f"select ({table}.*)::text as row from {table} order by 1")["rows"]]


@pytest.mark.parametrize(("type_", "value"), KINDS)
def test_a_value_of_any_type_is_frozen_exactly(service: Service, type_: str, value: str) -> None:
    table = fresh_table(service, f"id bigint generated always as identity, v {type_}")
    result = freeze(service, f"insert into {table} (v) values ({value}) returning ({table}.*)::text as row")
    assert texts(service, table) == []
    assert commit(service, result)["rows"] == result["rows"]
    assert texts(service, table) == [result["rows"][0]["row"]]


OWN_TYPES = """
create type mood as enum ('sad', 'it''s "ok"');
create type pair as (a int, b text);
create domain email as text check (value ~ '@') not null;
create domain pairs as pair[];
"""


def test_enums_composites_domains_and_nested_arrays_are_frozen_exactly(service: Service) -> None:
    for statement in OWN_TYPES.strip().split(";\n"):
        service.query(f"drop type if exists {statement.split()[2]} cascade")
        service.query(statement.rstrip(";"))
    table = fresh_table(
        service,
        "id serial primary key, m mood, ms mood[], p pair, ps pair[], e email, d pairs, at timestamptz default now(),"
        " twice int generated always as (id * 2) stored, u uuid default gen_random_uuid(), n int default -1",
    )
    service.query(f"alter table {table} drop column n")
    result = freeze(
        service,
        f"""insert into {table} (m, ms, p, ps, e, d) values ('it''s "ok"', array['sad', null]::mood[],
        row(1, E'a"b\\\\c,(d)'), array[row(null, ''), null]::pair[], 'a@b', array[row(2, '{{}}')]::pairs),
        (null, '{{}}', null, null, '@', null) returning *""",
    )
    assert "twice" not in result["frozen"]["sql"].partition("FROM")[0]
    assert commit(service, result)["rows"] == result["rows"]
    assert texts(service, table) == sorted(result["frozen"]["params"][0])
    assert freeze(service, f"insert into {table} (e) values ('c@d') returning id")["rows"][0]["id"] == 3


HOSTILE = [
    'a"b', "a'b", "a;b", "A b", "select", "a.b", "ä", "$1", "$$", "--", "/*", 'x"."y', '"', "\\", "r",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_need_quotes_stay_names(service: Service, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    service.query(f"drop table if exists {quoted}")
    service.query(f"create table {quoted} (id int generated always as identity, {quoted} text default {quoted[:0]}'d')")
    returning = f'{quoted}."id", {quoted}.{quoted}'
    for sql in (
        f"insert into {quoted} ({quoted}) values ('x') returning {returning}",
        f"insert into public . {quoted} default values returning {returning}",
        f"insert into {quoted} as {quoted} ({quoted}) values ('y') returning {returning}",
        f"insert into {quoted} as z ({quoted}) values ('y') returning z.{quoted}, z.id",
        f"insert into {quoted} default values",
    ):
        result = freeze(service, sql)
        assert commit(service, result)["rows"] == result["rows"]
    service.query(f"drop table {quoted}")


READABLE = [
    "insert into {t} (v) values ('returning') returning id, v -- , nothing",
    "insert into {t} (v) values ($$ returning ; $$) returning id, /* , ) /* nested ' */ */ v ;;",
    "insert into {t} (v) values ($a$ $$ ' $a$) returning (((id))), 'a;''b)' as x, E'\\'' as y, $$ , ( $$ as z",
    "/* insert */ insert into {t} (v) values ('x') returning id as \"returning\", v as returning",
    "insert into {t} (v) select 'x' as returning returning id",
    "insert into {t} (v) values (substring('abc' from 2)), (trim(both from ' a ')) returning id, v",
    "insert into {t} (v) values ((1 is distinct from 2)::text) returning id, v",
    "insert into {t} (v) select p0::text from (values ('a', 0), ('b', 1)) as s(p0, n) order by n returning id, v",
    "insert into {t} as n (v) values ('x') returning n.id, (select count(*) from {t}) as others",
    "insert into {t} (v) values ('x'), ('y') returning *",
    "insert into {t} (v) (values ('x')) returning {t}.*",
    "insert into {t} overriding user value values (7, 'x') returning id",
    "insert into {t} (v) values ('x')",
    "insert into {t} (v) select 'x' where false returning id",
]


@pytest.mark.parametrize("sql", READABLE)
def test_the_returning_list_is_found_and_kept(service: Service, sql: str) -> None:
    table = fresh_table(service, "id int generated always as identity, v text")
    result = freeze(service, sql.format(t=table))
    assert result["frozen"] is not None, result["frozen_reason"]
    committed = commit(service, result)
    assert (committed["rows"], committed["columns"]) == (result["rows"], result["columns"])
    assert texts(service, table) == sorted(result["frozen"]["params"][0])


def test_an_insert_with_parameters_answers_as_if_it_was_not_frozen(service: Service) -> None:
    table = fresh_table(service, "id int primary key, v text")
    sql = f"insert into {table} values ($1, $2) returning v, id"
    result = freeze(service, sql, 1, "a")
    assert (result["columns"], result["rows"], result["row_count"]) == (["v", "id"], [{"v": "a", "id": 1}], 1)
    plain = run(service, with_params(sql, 1, "a", digest=True), dry_run=True)["results"][0]
    assert plain["digest"] == result["digest"]
    assert "frozen" not in plain
    silent = freeze(service, f"insert into {table} values ($1, $2)", 2, "b")
    assert (silent["columns"], silent["rows"], silent["row_count"], silent["affected_rows"]) == ([], [], 0, 1)


REFUSED = [
    ("select 1", "not_an_insert"),
    ("update {t} set v = 'x'", "not_an_insert"),
    ("with x as (select 1) insert into {t} (v) select 'x' from x", "with_clause"),
    ("with x as (insert into {t} (v) values ('x') returning id) select id from x", "with_clause"),
    ("insert into {t} (v) values ('x') on conflict do nothing returning id", "on_conflict"),
    ("insert into {t} (v) select v from {t} returning id", "reads_tables"),
    ("insert into {t} (v) table {o}", "reads_tables"),
    ("insert into {t} (v) values ((select max(v) from {t})) returning id", "reads_tables"),
    ("insert into {t} (v) select a.x from (values ('x')) as a(x), {o} returning id", "reads_tables"),
    ("insert into {t} (v) select a.x from (values ('x')) as a(x) cross join {o} returning id", "reads_tables"),
    ("insert into {t} (v) values (next_number()) returning id", "calls_code"),
    ("insert into {t} (v) values (public . \"next_number\"()) returning id", "calls_code"),
    ("insert into {v} (v) values ('x') returning v", "not_a_table"),
    ("insert into {ruled} values (1)", "rules"),
    ("insert into {triggered} (n) values (1) returning n", "triggers"),
    ("insert into {guarded} values (1)", "rejected"),
    ("insert into {shown} values (1)", "row_security"),
    ("insert into {coded} (n) values (1) returning n", "calls_code"),
    ("insert into {operated} (n) values (1) returning n", "calls_code"),
    ("insert into {domained} (n) values (1) returning n", "calls_code"),
    ("insert into {t} (v) select last_number('1') returning id", "calls_code"),
    ("insert into {bare} default values", "no_columns"),
    (r"insert into {t} (v) values (E'a' " + "\n" + r" 'b') returning id", "unreadable"),
]  # fmt: skip


@pytest.fixture(scope="module")
def tables(service: Service) -> dict[str, str]:
    """Tables of every sort that can't be frozen, and one that can."""
    names = {"t": fresh_table(service, "id int generated always as identity, v text"), "v": "frozen_view"}
    names["o"] = fresh_table(service, "x text")
    for kind in ("ruled", "triggered", "guarded", "shown"):
        names[kind] = fresh_table(service, "n int")
    names["bare"] = fresh_table(service, "")
    for statement in (
        "create or replace function next_number() returns text language sql as $$ select '1' $$",
        "create or replace function frozen_trigger() returns trigger language plpgsql as"
        " $$ begin new.n := new.n + 1; return new; end $$",
        f"create or replace view frozen_view as select * from {names['o']}",
        "drop view frozen_view",
        f"create view frozen_view as select v from {names['t']}",
        f"create rule r as on insert to {names['ruled']} do also nothing",
        f"create trigger b before insert on {names['triggered']} for each row execute function frozen_trigger()",
        f"alter table {names['guarded']} enable row level security, force row level security",
        f"create policy p on {names['guarded']} for insert with check (true)",
        f"alter table {names['shown']} enable row level security, force row level security",
        f"create policy p on {names['shown']} using (true)",
    ):
        service.query(statement)
    for kind in ("operator @@@ (none, int)", "aggregate last_number (text)", "domain frozen_domain"):
        service.query(f"drop {kind.partition(' ')[0]} if exists {kind.partition(' ')[2]} cascade")
    for statement in (
        "create operator @@@ (rightarg = int, function = int4abs)",
        "create aggregate last_number (text) (sfunc = textcat, stype = text)",
        "create domain frozen_domain as text default gen_random_uuid()::text",
    ):
        service.query(statement)
    names["operated"] = fresh_table(service, "n int, v int default @@@ -1")
    names["domained"] = fresh_table(service, "n int, v frozen_domain")
    names["coded"] = fresh_table(service, "n int, v text default next_number()")
    return names


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_what_cannot_be_frozen_runs_as_it_is_and_says_why(
    service: Service, tables: dict[str, str], sql: str, reason: str
) -> None:
    result = freeze(service, sql.format(**tables))
    assert (result["frozen"], result["frozen_reason"]) == (None, reason)
    assert result == {**result, **_without_freezing(service, sql.format(**tables))}


def _without_freezing(service: Service, sql: str) -> dict[str, Any]:
    """What the answer has in any case. Generated values differ."""
    result = run(service, sql, dry_run=True)["results"][0]
    return {name: result[name] for name in ("columns", "types", "row_count", "affected_rows", "command")}


def test_a_sequence_of_the_same_transaction_is_not_frozen(service: Service) -> None:
    table = fresh_table(service, "id serial primary key, v text")
    insert = f"insert into {table} (v) values ('x') returning id"
    for before in (
        f"alter sequence {table}_id_seq restart",
        f"truncate {table} restart identity",
        f"do $$ begin alter sequence {table}_id_seq restart; exception when others then null; end $$",
    ):
        result = freeze(service, insert, before=(before,))
        assert (result["frozen"], result["frozen_reason"]) == (None, "new_sequence")
        assert result["rows"] == [{"id": 1}]
    made = (f"create temp table {table}_b (id serial, v text)", f"create sequence {table}_s")
    other = freeze(service, f"insert into {table}_b (v) values ('x') returning id", before=made)
    assert other["frozen_reason"] == "new_sequence"
    named = f"insert into {table} (id, v) values (nextval('{table}_s'), 'x') returning id"
    assert freeze(service, named, before=made)["frozen_reason"] == "new_sequence"
    assert freeze(service, insert, before=made)["frozen"] is not None


def test_a_partitioned_table_and_a_temporary_one_are_frozen(service: Service) -> None:
    table = fresh_table(service, "id int generated by default as identity, v text")
    service.query(f"create table {table}_p (id int generated by default as identity, v text) partition by list (v)")
    service.query(f"create table {table}_x partition of {table}_p for values in ('x')")
    for name, value in ((f"{table}_p", "default"), (f"{table}_x", "7")):
        result = freeze(service, f"insert into {name} (id, v) values ({value}, 'x') returning id, v")
        assert commit(service, result)["rows"] == result["rows"]
    before = (f"create temp table {table} (id uuid default gen_random_uuid())",)
    result = freeze(service, f"insert into {table} default values returning id", before=before)
    assert commit(service, result, before)["rows"] == result["rows"]


def test_statements_that_are_gone_are_prepared_again(service: Service) -> None:
    table = fresh_table(service, "id serial, v text")
    insert = f"insert into {table} (v) values ('x') returning id"
    for _ in range(3):
        assert freeze(service, insert)["frozen"] is not None
        assert freeze(service, insert, before=("deallocate all",))["frozen"] is not None


def test_freezing_needs_a_dry_run(service: Service) -> None:
    response = post(service, {"sql": "insert into t values (1)", "freeze": True})
    assert response.status_code == 400


def test_rows_that_are_too_large_to_freeze_run_as_they_are(service: Service) -> None:
    key, table = tenants.free_key(service), f"large_{secrets.token_hex(6)}"
    insert = f"insert into {table} select repeat('x', 1000), generate_series(1, 20000)"
    statements = (f"create table {table} (v text, n int)", {"sql": insert, "freeze": True})
    result = run(service, *statements, dry_run=True, key=key)["results"][-1]
    assert (result["frozen"], result["frozen_reason"], result["affected_rows"]) == (None, "too_large", 20_000)


def test_several_rejected_inserts_cost_one_more_attempt(service: Service, tables: dict[str, str]) -> None:
    rejected = {"sql": f"insert into {tables['guarded']} values (1)", "freeze": True}
    answer = run(service, *[rejected] * 4, dry_run=True, max_retries=0)
    assert answer["transaction"]["attempts"] == 2
    assert {result["frozen_reason"] for result in answer["results"]} == {"rejected"}


TRIGGERS = [
    ("after insert on {t} for each row", False), ("after insert or update on {t} for each statement", False),
    ("before insert on {t} for each statement", False), ("after insert on {t}_x for each row", False),
    ("after update or delete on {t} for each row", True), ("before truncate on {t} for each statement", True),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
@pytest.mark.parametrize(("trigger", "mergeable"), TRIGGERS)
def test_inserts_can_be_merged_if_no_trigger_sees(service: Service, kind: str, trigger: str, mergeable: bool) -> None:
    name, is_partitioned = f"merged_{secrets.token_hex(6)}", kind == "partitioned"
    for sql in (
        f"create table {name} (n int references {fresh_table(service, 'n int primary key')} deferrable)"
        f"{' partition by list (n)' if is_partitioned else ''}",
        f"create table {name}_x {f'partition of {name} for values in (null)' if is_partitioned else '(n int)'}",
        "create or replace function merged_trigger() returns trigger language plpgsql as $$ begin return null; end $$",
    ):
        service.query(sql)
    insert = f"insert into {name} values (null)"
    assert freeze(service, insert)["frozen"]["mergeable"] is True
    service.query(f"create trigger b {trigger.format(t=name)} execute function merged_trigger()")
    # A trigger of another table is of no interest.
    is_elsewhere = "{t}_x" in trigger and not is_partitioned
    assert freeze(service, insert)["frozen"]["mergeable"] is (mergeable or is_elsewhere)
    for table in (name, f"{name}_x"):
        service.query(f"alter table {table} disable trigger user")
    assert freeze(service, insert)["frozen"]["mergeable"] is True
