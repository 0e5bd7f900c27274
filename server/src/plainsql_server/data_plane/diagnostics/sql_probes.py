"""Probes of PostgreSQL features: each is a script of statements with their expected results.

Each script runs in one serializable transaction, in a temporary schema that only this transaction sees, and is always
rolled back. So nothing is left behind, and no other request encounters its functions and triggers.
"""

from dataclasses import dataclass
from typing import Any

from plainsql_server.core.errors import StatementError
from plainsql_server.data_plane.diagnostics.probe_context import Probe, ProbeContext, ProbeFinding, evidence_of
from plainsql_server.data_plane.service_connections import ServiceConnection
from plainsql_server.engine.execution import temporary_schemas
from plainsql_server.engine.execution.execution import BEGIN


@dataclass(frozen=True, slots=True)
class Gives:
    """A statement, and the single value that it must return."""

    sql: str
    value: str


@dataclass(frozen=True, slots=True)
class Fails:
    """A statement that must fail, and its SQLSTATE."""

    sql: str
    sqlstate: str


Step = str | Gives | Fails


def script(*steps: Step) -> Probe:
    """A probe that runs these steps in order, until one does not have the expected result."""

    async def probe(context: ProbeContext) -> ProbeFinding:
        async with context.open() as service:
            name = temporary_schemas.new_schema_name()
            evidence: list[dict[str, Any]] = []
            supported = await _begin(service, name, evidence)
            for step in steps:
                supported = supported and await _holds(service, step, evidence)
            await service.run(b"rollback")
        return ProbeFinding(supported, {"steps": evidence})

    return probe


async def _begin(service: ServiceConnection, name: str, evidence: list[dict[str, Any]]) -> bool:
    await service.run(BEGIN[False])
    path = f"set local search_path = {name}, pg_catalog"
    return await _holds(service, temporary_schemas.create(name).decode(), evidence) and await _holds(
        service, path, evidence
    )


async def _holds(service: ServiceConnection, step: Step, evidence: list[dict[str, Any]]) -> bool:
    sql = step if isinstance(step, str) else step.sql
    try:
        _, answer = await service.run(b"savepoint step", sql.encode())
    except StatementError as error:
        await service.run(b"rollback to step")
        evidence.append({"sql": sql, "failed": evidence_of(error)})
        return isinstance(step, Fails) and error.diagnosis.sqlstate == step.sqlstate
    got = [None if value is None else value.decode() for row in answer.rows for value in row]
    evidence.append({"sql": sql, "gave": got} if got else {"sql": sql})
    return not isinstance(step, Fails) and (isinstance(step, str) or got == [step.value])


async def extensions(context: ProbeContext) -> ProbeFinding:
    """Lists the extensions that can be created in the database."""
    async with context.open() as service:
        (answer,) = await service.run(b"select plainsql.offered_extensions()")
    names = [value.decode() for row in answer.rows for value in row if value is not None]
    return ProbeFinding(bool(names), {"available": names})


constraints = script(
    "create table accounts (id int primary key, email text unique, balance int check (balance >= 0))",
    "create table payments (account int references accounts)",
    "insert into accounts values (1, 'a', 10)",
    Fails("insert into accounts values (1, 'b', 0)", "23505"),
    Fails("update accounts set balance = -1", "23514"),
    Fails("insert into payments values (2)", "23503"),
)
upsert = script(
    "create table counters (name text primary key, n int not null)",
    "insert into counters values ('a', 1)",
    Gives("insert into counters values ('a', 1) on conflict (name) do update set n = counters.n + 1 returning n", "2"),
)
merge = script(
    "create table stock (id int primary key, n int not null)",
    "insert into stock values (1, 1)",
    "merge into stock using (values (1, 5), (2, 7)) as news (id, n) on stock.id = news.id"
    " when matched then update set n = stock.n + news.n when not matched then insert values (news.id, news.n)",
    Gives("select string_agg(id || ':' || n, ',' order by id) from stock", "1:6,2:7"),
)
json_documents = script(
    "create table documents (body jsonb not null)",
    """insert into documents values ('{"tags": ["a", "b"], "size": 3}'), ('{"tags": []}')""",
    Gives("""select body -> 'tags' ->> 1 from documents where body @> '{"tags": ["b"]}'""", "b"),
    Gives("""select count(*) from documents where body @? '$.size ? (@ > 2)'""", "1"),
)
full_text_search = script(
    "create table articles (body text, words tsvector generated always as (to_tsvector('english', body)) stored)",
    "create index on articles using gin (words)",
    "insert into articles (body) values ('The foxes were jumping'), ('Nothing of that kind')",
    Gives("select body from articles where words @@ to_tsquery('english', 'fox & jump')", "The foxes were jumping"),
)
window_functions = script(
    Gives("select string_agg(s::text, ',') from (select sum(n) over (order by n) s from generate_series(1, 4) n) t",
          "1,3,6,10"),
)  # fmt: skip
recursive_queries = script(
    Gives("with recursive f(a, b) as (values (0, 1) union all select b, a + b from f where b < 50)"
          " select max(b) from f", "55"),
)  # fmt: skip
generated_columns = script(
    "create table boxes"
    " (id int generated always as identity, w int, h int, area int generated always as (w * h) stored)",
    Gives("insert into boxes (w, h) values (6, 7) returning id || ' ' || area", "1 42"),
)
partitioned_tables = script(
    "create table events (id int, at date) partition by range (at)",
    "create table events_2026 partition of events for values from ('2026-01-01') to ('2027-01-01')",
    Gives("insert into events values (1, '2026-11-15') returning tableoid::regclass", "events_2026"),
    Fails("insert into events values (2, '2027-11-15')", "23514"),
)
views = script(
    "create table people (name text, active bool)",
    "insert into people values ('a', true), ('b', false)",
    "create view active_people as select name from people where active",
    Gives("select name from active_people", "a"),
)
materialized_views = script(
    "create table sales (amount int)",
    "create materialized view total as select coalesce(sum(amount), 0) as amount from sales",
    "insert into sales values (5), (6)",
    Gives("select amount from total", "0"),
    "refresh materialized view total",
    Gives("select amount from total", "11"),
)
functions = script(
    "create function twice(n int) returns int language plpgsql as $$ begin return n * 2; end $$",
    Gives("select twice(21)", "42"),
)
triggers = script(
    "create table notes (body text, changed int not null default 0)",
    "create function count_change() returns trigger language plpgsql as"
    " $$ begin new.changed := old.changed + 1; return new; end $$",
    "create trigger counting before update on notes for each row execute function count_change()",
    "insert into notes values ('a')",
    "update notes set body = 'b'",
    Gives("select changed from notes", "1"),
)
row_level_security = script(
    "create table rows_of_all (owner text)",
    "insert into rows_of_all values ('me'), ('you')",
    "alter table rows_of_all enable row level security",
    "alter table rows_of_all force row level security",
    "create policy mine on rows_of_all using (owner = 'me')",
    Gives("select string_agg(owner, ',') from rows_of_all", "me"),
)
large_objects = script(
    "create table objects as select lo_from_bytea(0, 'stored') as id",
    Gives("select encode(lo_get(id), 'escape') from objects", "stored"),
    Gives("select lo_unlink(id) from objects", "1"),
)
deferred_constraints = script(
    "create table chain (id int primary key, next int references chain deferrable initially deferred)",
    "insert into chain values (1, 2)",
    Fails("set constraints all immediate", "23503"),
    "insert into chain values (2, 1)",
    "set constraints all immediate",
)
