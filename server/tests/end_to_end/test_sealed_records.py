"""The record of requests is in the customer's database and out of the customer's reach.

It is written by the tenant's own session, so everything that a tenant can do to a session or lay in its way is tried:
to read it, to write it, to forge a record, to be called by its functions, and to learn the secret that they ask for.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from server.tests.end_to_end import tenants
from server.tests.end_to_end.transactions import Sent, fresh_table, numbers, post
from server.tests.service import Service

FORBIDDEN = [
    "select * from plainsql.requests", "select key from plainsql.requests limit 0", "table plainsql.responses",
    "select hash from plainsql.secrets", "insert into plainsql.requests values ('forged', 'req_forged00', '')",
    "insert into plainsql.responses values ('forged', '{{}}')", "insert into plainsql.secrets values ('')",
    "update plainsql.requests set key = 'forged'", "delete from plainsql.responses", "truncate plainsql.requests",
    "merge into plainsql.requests r using (select 1) s on true when matched then delete",
    "lock table plainsql.requests", "drop table plainsql.requests", "drop schema plainsql cascade",
    "alter schema plainsql rename to mine", "alter schema plainsql owner to current_user",
    "alter table plainsql.requests owner to current_user", "alter table plainsql.requests add column mine int",
    "alter table plainsql.requests disable trigger all", "alter table plainsql.requests enable row level security",
    "alter table plainsql.requests set schema public", "create table plainsql.mine ()",
    "create type plainsql.mine as ()",
    "create function plainsql.mine() returns int language sql as 'select 1'", "create view plainsql.mine as select 1",
    "create or replace function plainsql.check_secret(sent text) returns void language sql as ''",
    "create function plainsql.claim(text, text, text, text) returns void language sql as ''",
    "drop function plainsql.check_secret(text)", "alter function plainsql.check_secret(text) reset all",
    "alter function plainsql.check_secret(text) set search_path = public", "create index on plainsql.requests (key)",
    "alter function plainsql.look_up(text, text) security invoker", "alter function plainsql.check_secret(text) cost 1",
    "alter function plainsql.check_secret(text) owner to current_user",
    "create trigger mine before insert on plainsql.requests for each row execute function spy()",
    "create rule mine as on insert to plainsql.requests do instead nothing",
    "create policy mine on plainsql.requests using (true)",
    "create statistics mine on key, request_id from plainsql.requests",
    "grant all on plainsql.requests to current_user",
    "create table mine () inherits (plainsql.requests)", "create table mine (k text references plainsql.requests)",
    "comment on table plainsql.requests is 'mine'", "create publication mine for table plainsql.requests",
    "select plainsql.check_secret('')", "select plainsql.check_secret(null)", "select plainsql.check_secret('guess')",
    "select plainsql.claim('guess', 'forged', 'req_forged00', '')", "select plainsql.claim(null, 'forged', '', '')",
    "select plainsql.finish('guess', 'forged', '{{}}')", "select plainsql.finish(null, 'forged', '{{}}')",
    "select * from plainsql.look_up('guess', '{key}')", "select * from plainsql.look_up(null, '{key}')",
    "select plainsql.purge('guess')", "select plainsql.purge(null)",
    "do $$ begin perform plainsql.claim('x', 'forged', '', ''); end $$",
    "set role plainsql_admin", "set session authorization plainsql_admin",
    "reassign owned by plainsql_admin to current_user",
    "drop owned by plainsql_admin", "grant plainsql_admin to current_user", "set session_replication_role = replica",
    "alter default privileges for role plainsql_admin grant all on tables to public", "reindex table plainsql.requests",
    "create event trigger mine on ddl_command_start execute function spy()", "create extension pageinspect",
    "select pg_try_advisory_lock(hashtextextended('{key}', 0))", "select pg_read_file('PG_VERSION')",
    "select * from pg_statistic", "select lo_import('/etc/passwd')",
]  # fmt: skip

# What shows what a session does or knows.
SHOWS = [
    "select query from pg_stat_activity", "select statement from pg_prepared_statements", "select * from pg_cursors",
    "select current_query()", "select prosrc from pg_proc", "select * from pg_stats where schemaname = 'plainsql'",
    "select most_common_vals::text from pg_stats", "select * from pg_settings",
    "select * from pg_stat_user_functions", "select * from pg_stat_all_tables", "select * from pg_description",
    "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'plainsql'::regnamespace",
    "select * from pg_db_role_setting", "select * from pg_backend_memory_contexts",
]  # fmt: skip
TALKATIVE = [
    "set client_min_messages = debug5", "set debug_print_plan = on", "set debug_print_parse = on",
    "set log_parameter_max_length_on_error = -1", "set plpgsql.extra_warnings = 'all'",
]  # fmt: skip

# The names that the service's functions use, laid in their way wherever a tenant can lay something.
EVIL = [
    "create schema evil",
    "create function spy() returns trigger language plpgsql as $$ begin raise exception 'spied'; end $$",
    "create function evil.sha256(bytea) returns bytea language plpgsql as"
    " $$ begin raise exception 'spied %', $1; end $$",
    "create function evil.hashtextextended(text, bigint) returns bigint language plpgsql as"
    " $$ begin raise exception 'spied %', $1; end $$",
    "create function evil.pg_try_advisory_xact_lock(bigint) returns bool language plpgsql as"
    " $$ begin raise exception 'spied'; end $$",
    "create function evil.now() returns timestamptz language plpgsql as $$ begin raise exception 'spied'; end $$",
    "create function evil.clock_timestamp() returns timestamptz language plpgsql as"
    " $$ begin raise exception 'spied'; end $$",
    "create function evil.equal(bytea, bytea) returns bool language plpgsql as"
    " $$ begin raise exception 'spied %', $2; end $$",
    "create operator evil.= (leftarg = bytea, rightarg = bytea, function = evil.equal)",
    "create function evil.equal(text, text) returns bool language plpgsql as"
    " $$ begin raise exception 'spied %', $2; end $$",
    "create operator evil.= (leftarg = text, rightarg = text, function = evil.equal)",
    "create function evil.cast(text) returns bytea language plpgsql as $$ begin raise exception 'spied %', $1; end $$",
    "create table evil.pg_locks (a int)",
    "create domain evil.text as pg_catalog.text check (false)",
    "create domain evil.bytea as pg_catalog.bytea check (false)",
]
IN_THE_WAY: list[list[str]] = [
    ["set search_path = evil, pg_catalog, public"],
    ["set local search_path = evil, pg_temp, pg_catalog, public"],
    ["create temp table pg_locks (a int)", "create temp table requests (a int)",
     "create temp table secrets (hash bytea)"],
    ["create domain pg_temp.text as pg_catalog.text check (false)",
     "set search_path = pg_temp, evil, pg_catalog, public"],
    ["set plpgsql.extra_errors = 'all'"], ["set bytea_output = 'escape'", "set datestyle = 'German'"],
    ["set client_encoding = 'SQL_ASCII'"], ["set standard_conforming_strings = off", "set backslash_quote = on"],
    ["set default_tablespace = ''", "set check_function_bodies = off", "set transform_null_equals = on"],
    ["set role none", "set session authorization default", "reset all"], ["deallocate all", "discard temp"],
]  # fmt: skip


@dataclass(frozen=True)
class Sealed:
    """A database with a record in it, and a superuser's look at what is recorded."""

    service: Service
    engine: "psycopg.Connection[tuple[Any, ...]]"
    key: str
    secrets: tuple[str, ...]

    def recorded(self) -> list[tuple[Any, ...]]:
        return self.engine.execute(
            "select r.*, s.body, s.finished_at, (select string_agg(hash::text, ',') from plainsql.secrets)"
            " from plainsql.requests r full join plainsql.responses s using (key) order by key"
        ).fetchall()

    def code(self) -> list[tuple[Any, ...]]:
        return self.engine.execute(
            "select oid::regprocedure::text, proowner, prosecdef, proconfig, proacl::text, md5(prosrc) from pg_proc"
            " where pronamespace = 'plainsql'::regnamespace order by 1"
        ).fetchall()


@pytest.fixture(scope="module")
def sealed(service: Service) -> Iterator[Sealed]:
    for sql in EVIL:
        service.query(sql)
    key = secrets.token_hex(8)
    post(service, "select 1", idempotency_key=key)
    with service.engine("plainsql_directory") as directory:
        rows = directory.execute("select record_secret from databases").fetchall()
    with service.engine() as engine:
        yield Sealed(service, engine, key, tuple(row[0] for row in rows))


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_a_tenant_can_neither_read_nor_write_nor_change_it(sealed: Sealed, statement: str) -> None:
    before = sealed.recorded(), sealed.code()
    statement = statement.replace("{{}}", "{}").replace("{key}", sealed.key)
    for key in (sealed.service.api_key, tenants.read_key(sealed.service)):
        single = sealed.service.call("POST", "/v1/query", key=key, json={"sql": statement})
        assert not single.json()["success"], single.text
        together = post(sealed.service, "select 1", statement, key=key, idempotency_key=secrets.token_hex(8))
        assert not together.json()["success"], together.text
        for response in (single, together):
            assert response.status_code in (200, 400), response.text
            assert not any(secret in response.text for secret in sealed.secrets)
    assert (sealed.recorded(), sealed.code()) == before


def test_a_tenant_cannot_change_how_plpgsql_reads_names(sealed: Sealed) -> None:
    # A session that has not loaded plpgsql yet doesn't know the setting, and takes it for one of the tenant's own.
    load, change = "do $$ begin end $$", "set plpgsql.variable_conflict = use_variable"
    for key in (sealed.service.api_key, tenants.read_key(sealed.service)):
        response = post(sealed.service, load, change, key=key, idempotency_key=secrets.token_hex(8))
        assert response.json()["error"]["sqlstate"] == "42501", response.text


def test_granting_an_object_of_another_owner_has_no_effect(sealed: Sealed) -> None:
    """The engine only warns."""
    rights = "select nspacl::text from pg_namespace where nspname = 'plainsql'"
    before = sealed.engine.execute(rights).fetchall()
    for statement in ("grant create on schema plainsql to public", "revoke usage on schema plainsql from current_user"):
        sealed.service.post_query(statement)
    assert sealed.engine.execute(rights).fetchall() == before


@pytest.mark.parametrize("first", IN_THE_WAY, ids=lambda first: first[0])
def test_tenant_objects_with_the_same_names_are_never_called(sealed: Sealed, first: list[str]) -> None:
    service, key = sealed.service, secrets.token_hex(8)
    table = fresh_table(service)
    work: list[Sent] = [*first, f"insert into public.{table} values (1)"]
    response = post(service, *work, idempotency_key=key)
    assert response.json()["success"], response.text
    again = post(service, *work, idempotency_key=key)
    assert (again.content, again.headers["idempotency-replayed"]) == (response.content, "true")
    assert service.call("GET", f"/v1/requests/{key}").json()["request"]["outcome"] == "committed"
    assert numbers(service, table) == [1]


def test_settings_stored_by_a_tenant_have_no_effect(sealed: Sealed) -> None:
    service, key = sealed.service, secrets.token_hex(8)
    stored = {
        "bytea_output": "escape", "search_path": "evil, public", "plpgsql.extra_errors": "all", "datestyle": "German",
        "default_transaction_isolation": "read committed", "default_transaction_read_only": "on",
        "statement_timeout": "1", "default_transaction_deferrable": "on",
    }  # fmt: skip
    try:
        for name, value in stored.items():
            # In PL/pgSQL, whose settings can be stored only by a session that has loaded it.
            change = f"alter role current_user set {name} = {value if ',' in value else repr(value)}"
            service.query(f"do $$ begin {change}; end $$")
        end_sessions(sealed)
        first = post(service, "select pg_sleep(0.01)", "select 1", idempotency_key=key)
        assert first.json()["success"], first.text
        assert post(service, "select pg_sleep(0.01)", "select 1", idempotency_key=key).content == first.content
        assert service.call("GET", f"/v1/requests/{key}").json()["request"]["outcome"] == "committed"
    finally:
        service.query("alter role current_user reset all")
        end_sessions(sealed)


def end_sessions(sealed: Sealed) -> None:
    sealed.engine.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename ~ '^[or]_' and state like 'idle%'"
    )


@pytest.mark.parametrize("statement", SHOWS)
def test_views_of_sessions_do_not_show_the_secret(sealed: Sealed, statement: str) -> None:
    for before in ([], TALKATIVE):
        response = post(sealed.service, *before, statement, "select 1 / 0", idempotency_key=secrets.token_hex(8))
        alone = post(sealed.service, *before, statement, idempotency_key=secrets.token_hex(8))
        for each in (response, alone):
            assert not any(secret in each.text for secret in sealed.secrets)
            assert sealed.key not in each.text


def test_an_error_of_the_record_itself_does_not_show_the_secret(sealed: Sealed) -> None:
    """The transaction is made unfit for its record, by the settings that say most about errors."""
    service, table = sealed.service, fresh_table(sealed.service)
    for unfit in ("set local transaction_read_only = on", "set local default_transaction_read_only = on"):
        key = secrets.token_hex(8)
        response = post(service, f"insert into {table} values (1)", *TALKATIVE, unfit, idempotency_key=key)
        outcome = service.call("GET", f"/v1/requests/{key}").json()["request"]["outcome"]
        assert not any(secret in response.text for secret in sealed.secrets)
        assert (outcome == "committed") == response.json()["success"] == (numbers(service, table) == [1])
        assert response.status_code == 200


def test_a_tenants_trigger_does_not_see_the_record(sealed: Sealed) -> None:
    """Code that runs at the commit, after the record was written, as the tenant."""
    service, table = sealed.service, fresh_table(sealed.service)
    service.query(
        f"create function {table}_look() returns trigger language plpgsql as $$ begin"
        " perform * from plainsql.responses; return null; end $$"
    )
    service.query(
        f"create constraint trigger look after insert on {table} deferrable initially deferred"
        f" for each row execute function {table}_look()"
    )
    error = post(service, f"insert into {table} values (1)", idempotency_key=secrets.token_hex(8)).json()["error"]
    assert error["code"] == "insufficient_privilege"
    assert numbers(service, table) == []
