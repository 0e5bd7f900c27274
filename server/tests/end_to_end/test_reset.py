"""POST /admin/reset: everything in one database goes, and nothing anywhere else."""

import threading
import time
from typing import Any

import httpx
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.control import answer, new_key
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.own_databases import OwnDatabase, new_database, without_durability
from server.tests.load import size
from server.tests.service import Service, running_service

# 10,000 in the whole proof.
TABLES = size("PLAINSQL_TEST_RESET_TABLES", 400)
# Of the 135,000 entries that the lock table of `dev` has.
MOST_LOCKS = 4_000

EVERYTHING = [
    "create table notes (id bigint generated always as identity primary key, body text)",
    "insert into notes (body) values ('milk')",
    "create table items (id serial primary key, note bigint references notes, n int generated always as (1) stored)",
    'create table "we""ird Näme" (x int)',
    "create unlogged table unlogged ()",
    "create index on items (note)",
    "create view readable as select * from notes",
    "create view on_view as select * from readable",
    "create materialized view kept as select * from notes",
    "create sequence counting",
    "create schema app",
    'create schema "Other App"',
    "create type app.mood as enum ('good', 'bad')",
    "create type app.pair as (a int, b app.mood)",
    "create domain app.positive as int check (value > 0)",
    "create type app.span as range (subtype = int)",
    "create table app.typed (m app.mood, p app.pair, d app.positive, s app.span)",
    "create cast (app.pair as text) with inout",
    "create function app.twice(n int) returns int language sql as 'select n * 2'",
    "create function rows_of_notes() returns setof notes language sql as 'select * from notes'",
    "create procedure app.nothing() language plpgsql as $$ begin end $$",
    "create aggregate app.total(int) (sfunc = int4pl, stype = int)",
    "create operator app.### (leftarg = int, rightarg = int, function = int4pl)",
    'create collation app.plain from "C"',
    "create conversion app.latin for 'LATIN1' to 'UTF8' from iso8859_1_to_utf8",
    "create text search configuration app.words (copy = simple)",
    "create text search dictionary app.book (template = simple)",
    "create statistics app.both on id, note from items",
    "create publication news for table notes",
    "create extension fuzzystrmatch schema app",
    "create table app.parts (at date) partition by range (at)",
    "create table app.part_1 partition of app.parts for values from ('2026-01-01') to ('2027-01-01')",
    "create function app.changed() returns trigger language plpgsql as $$ begin return new; end $$",
    "create trigger watching before update on notes for each row execute function app.changed()",
    "create rule quiet as on delete to items do instead nothing",
    "alter table notes enable row level security",
    "create policy all_of_it on notes using (true)",
    "comment on table notes is 'said'",
    "select lo_from_bytea(0, 'large') from generate_series(1, 3)",
]
WANTED = {
    "tables": 7, "views": 2, "materialized_views": 1, "sequences": 3, "functions": 5, "types": 4, "schemas": 2,
    "large_objects": 3,
}  # fmt: skip


def reset(database: OwnDatabase, confirm: str = "", **arguments: Any) -> httpx.Response:
    body = {"confirm": confirm or database.name}
    return database.call("POST", "/admin/reset", json=body, timeout=600, **arguments)


def filled(service: Service, key: str = "") -> OwnDatabase:
    database = new_database(service, key)
    with database.as_owner() as engine:
        for statement in EVERYTHING:
            engine.execute(statement.encode())
    return database


def contents(database: OwnDatabase) -> Any:
    """All that could change by mistake: objects, rows and rights."""
    with database.service.engine(database.engine_name) as engine:
        rights = engine.execute("select oid, relacl from pg_class where oid >= 16384 order by 1").fetchall()
        notes = engine.execute("select * from public.notes").fetchall()
        large = engine.execute("select loid, data from pg_largeobject").fetchall()
    return database.objects(), database.owned(), rights, notes, large


def test_a_reset_leaves_the_database_as_new(service: Service) -> None:
    database, new = filled(service), new_database(service)
    response = reset(database)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["success"] is True
    assert body["database"] == database.name
    assert WANTED.items() <= body["dropped"].items()
    assert body["dropped"]["others"] == 8
    assert database.objects() == new.objects() == set()
    assert len(database.owned()) == len(new.owned())
    assert reset(database).json()["dropped"] == dict.fromkeys(body["dropped"], 0)


def test_a_reset_leaves_other_databases_alone(service: Service) -> None:
    database, sibling = filled(service), filled(service)
    neighbour = filled(service, tenants.other_administrator(service))
    before = contents(sibling), contents(neighbour)
    assert reset(database).status_code == 200
    assert (contents(sibling), contents(neighbour)) == before
    assert sibling.query("select body from notes")["rows"] == [{"body": "milk"}]


def test_the_database_its_keys_and_its_records_work_as_before(service: Service) -> None:
    database = filled(service)
    reader = str(new_key(service, "read", database=database.name)["secret"])
    once = {"Idempotency-Key": "before-the-reset"}
    body = {"sql": "insert into notes (body) values ('once') returning body"}
    first = database.call("POST", "/v1/query", headers=once, json=body)
    assert reset(database).status_code == 200
    again = database.call("POST", "/v1/query", headers=once, json=body)
    assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
    fresh = {"Idempotency-Key": "after-the-reset"}
    made = {"sql": "create table notes as select 'new' as body"}
    assert database.call("POST", "/v1/query", headers=fresh, json=made).json()["success"]
    seen = database.call("POST", "/v1/query", key=reader, json={"sql": "select body from notes"}).json()
    assert seen["rows"] == [{"body": "new"}]


def test_the_schema_public_is_there_afterwards_even_if_it_was_not_before(service: Service) -> None:
    database = new_database(service)
    database.query("alter schema public rename to private")
    assert reset(database).json()["dropped"]["schemas"] == 1
    database.query("create table here ()")
    reader = tenants.read_key(service)
    assert database.call("POST", "/v1/query", key=reader, json={"sql": "select * from here"}).json()["success"]


def test_objects_are_dropped_in_small_batches(service: Service) -> None:
    """A type of an extension's in each of many tables: dropped first, it would take a lock on every one of them."""
    database = new_database(service)
    database.query("create extension citext")
    database.make_tables(150, "id int primary key, name citext")
    with service.engine(database.engine_name) as engine:
        for statement in NOTING_DROPS:
            engine.execute(statement.encode())
    assert reset(database).status_code == 200
    with service.engine(database.engine_name) as engine:
        noted: dict[str, int] = dict(
            engine.execute("select kind, max(dropped) from plainsql.noted group by 1").fetchall()
        )
        assert noted.keys() == {"table", "extension"}
        # The table, its rows' types, its key, its index; with room for what later versions add.
        assert noted["table"] < 12
        kinds = engine.execute("select count(*) from plainsql.noted where kind = 'extension' and columns > 0")
        assert kinds.fetchone() == (0,)


# What every DROP takes with it, as PostgreSQL reports it to the superuser.
NOTING_DROPS = [
    "create table plainsql.noted (kind text, dropped int, columns int)",
    """
    create function plainsql.note_drop() returns event_trigger language plpgsql security definer as $$
    begin
        insert into plainsql.noted
        select min(object_type) filter (where original), count(*),
            count(*) filter (where object_type = 'table column')
        from pg_event_trigger_dropped_objects();
    end $$
    """,
    "create event trigger noting on sql_drop execute function plainsql.note_drop()",
]


def test_objects_of_the_operator_survive_a_reset(service: Service) -> None:
    database = new_database(service)
    with service.engine(database.engine_name) as engine:
        engine.execute("create extension fuzzystrmatch schema public")
        engine.execute("create table public.operators ()")
    database.query("create table mine (x text default soundex('x'))")
    assert reset(database).status_code == 200
    assert {("relation", "operators"), ("extension", "fuzzystrmatch")} <= database.objects()
    assert ("relation", "mine") not in database.objects()


def test_a_reset_must_be_confirmed_with_the_databases_name(service: Service) -> None:
    database, other = filled(service), new_database(service)
    before = contents(database)
    for wrong in (other.name, database.name.upper(), database.name + " ", database.engine_name):
        error = error_of(reset(database, wrong), 400, "not_confirmed")
        assert error["outcome"] == "not_executed"
    admin = tenants.admin_key(service)
    for body in ({}, {"confirm": None}, {"confirm": database.name, "force": True}, {"database": database.name}):
        error_of(database.call("POST", "/admin/reset", key=admin, json=body), 400, "malformed_request")
    assert contents(database) == before


def test_the_field_wins_over_the_header_and_the_default_is_the_default(service: Service) -> None:
    database, other = filled(service), filled(service)
    admin = tenants.admin_key(service)
    body = {"confirm": other.name, "database": other.name}
    assert database.call("POST", "/admin/reset", key=admin, json=body).status_code == 200
    assert other.objects() == set() != database.objects()
    other_id = answer(service, "GET", f"/v1/databases/{other.name}")["id"]
    body = {"confirm": other_id, "database": other_id}
    assert database.call("POST", "/admin/reset", key=admin, json=body).status_code == 200
    error_of(service.call("POST", "/admin/reset", key=admin, json={"confirm": other.name}), 400, "not_confirmed")


def test_only_the_scope_admin_may_and_only_where_its_key_may(service: Service) -> None:
    database, other = filled(service), new_database(service)
    for scopes in (["read"], ["write"], ["read", "write"]):
        error_of(reset(database, key=str(new_key(service, *scopes)["secret"])), 403, "forbidden")
    bound = str(new_key(service, "admin", database=other.name)["secret"])
    error_of(reset(database, key=bound), 403, "forbidden")
    error_of(reset(database, key=tenants.other_administrator(service)), 404, "database_not_found")
    assert database.query("select body from notes")["rows"]
    assert reset(other, key=bound).status_code == 200


def test_the_audit_log_names_the_actor(service: Service) -> None:
    database = new_database(service)
    response = reset(database)
    entries = answer(service, "GET", "/v1/audit?limit=20")["audit"]
    (entry,) = [each for each in entries if each["request_id"] == response.json()["request_id"]]
    assert (entry["action"], entry["actor"]["kind"]) == ("database.reset", "key")


def test_two_resets_and_a_busy_customer_do_not_stop_each_other(service: Service) -> None:
    database = filled(service)
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            database.call("POST", "/v1/query", json={"sql": "select count(*) from notes join items on true"})

    user = threading.Thread(target=use)
    user.start()
    try:
        answers: list[httpx.Response] = []
        resets = [threading.Thread(target=lambda: answers.append(reset(database))) for _ in range(2)]
        for each in resets:
            each.start()
        for each in resets:
            each.join()
    finally:
        stop.set()
        user.join()
    assert [each.status_code for each in answers] == [200, 200], [each.text for each in answers]
    assert database.objects() == set()


class Watch:
    """Looks at the cell beside a reset: at the places in the lock table, and at a neighbour's statements."""

    def __init__(self, database: OwnDatabase, neighbour: OwnDatabase) -> None:
        self._database = database
        self._neighbour = neighbour
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._locks), threading.Thread(target=self._statements)]
        self.most_locks = 0
        self.statements = 0
        self.failures: list[Any] = []

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _locks(self) -> None:
        count = "select count(*) from pg_locks l join pg_database d on d.oid = l.database where d.datname = %s"
        with self._database.service.engine() as engine:
            while not self._stop.is_set():
                row = engine.execute(count, (self._database.engine_name,)).fetchone()
                assert row is not None
                self.most_locks = max(self.most_locks, row[0])

    def _statements(self) -> None:
        while not self._stop.is_set():
            for statement in ("create table beside (id int primary key)", "drop table beside"):
                body = self._neighbour.call("POST", "/v1/query", json={"sql": statement}).json()
                self.statements += 1
                if not body["success"]:
                    self.failures.append(body)


@pytest.mark.timeout(240 + TABLES / 10)
def test_dropping_thousands_of_tables_does_not_harm_neighbours() -> None:
    with running_service() as service:
        without_durability(service)
        database, neighbour = new_database(service), new_database(service, tenants.other_administrator(service))
        database.make_tables(TABLES, "id bigint generated always as identity primary key, body text unique")
        # Parts that are older than what they became parts of, which goes last all the same.
        database.query("create table whole (like t_0) partition by list (id)")
        with database.as_owner() as engine:
            for at in range(50):
                engine.execute(f"alter table t_{at} alter column id drop identity".encode())
                engine.execute(f"alter table whole attach partition t_{at} for values in ({at})".encode())
        with Watch(database, neighbour) as watch:
            began_s = time.monotonic()
            response = reset(database)
            took_s = time.monotonic() - began_s
        assert response.status_code == 200, response.text
        dropped = response.json()["dropped"]
        print(
            f"{TABLES} tables went in {took_s:.1f} s, with {watch.most_locks} locks at most;"
            f" {watch.statements} statements of a neighbour's, {len(watch.failures)} failures"
        )
        assert (dropped["tables"], dropped["sequences"]) == (TABLES + 1, TABLES - 50)
        assert database.objects() == set()
        assert watch.failures == []
        assert watch.most_locks < MOST_LOCKS
