"""Backup and restore of a database with traps of its customer: it uses no other role's privileges."""

import os
from pathlib import Path

import psycopg
import pytest

from plainsql_server.engine.admin.provisioning import backup_role_of
from server.tests.operations.stage import Stage
from server.tests.postgres import SUPERUSER

# Each says who it runs as; a superuser would also leave a mark that no customer can.
_SPY = """
    create function spy(place text) returns int language plpgsql as $$
    begin
        begin
            execute 'set role {superuser}';
        exception when others then null;
        end;
        begin
            execute 'copy (select 1) to program ''touch {mark}''';
        exception when others then null;
        end;
        begin
            perform lo_export(lo_from_bytea(0, pg_read_binary_file('postgresql.conf')), '{mark}');
        exception when others then null;
        end;
        insert into public.seen values (place, current_user, session_user,
            (select rolsuper from pg_roles where rolname = current_user));
        begin
            create table plainsql.trapped (a int);
        exception when others then null;
        end;
        begin
            execute 'alter role current_user superuser';
        exception when others then null;
        end;
        return 1;
    exception when read_only_sql_transaction then return 1;
    end $$
"""
TRAPS = [
    "create table seen (place text, who name, login name, super bool)",
    _SPY,
    "create function pure_spy(a int) returns int language plpgsql immutable as"
    " $$ begin perform public.spy('index'); return a; end $$",
    "create function spy_in(place text, a int) returns int language plpgsql immutable as"
    " $$ begin perform public.spy(place); return a; end $$",
    "create function definer(a int) returns int language plpgsql immutable security definer set search_path = evil as"
    " $$ begin perform public.spy('security definer'); return a; end $$",
    "create table bait (a int default public.spy('default'))",
    "insert into bait values (1), (2)",
    "create index on bait (public.pure_spy(a))",
    "alter table bait add check (public.pure_spy(a) > 0)",
    "create view looked_at as select public.spy('view')",
    "create materialized view kept as select public.spy('matview') as a",
    "create function on_insert() returns trigger language plpgsql as"
    " $$ begin perform public.spy('trigger'); return new; end $$",
    "create trigger on_insert before insert on bait for each row execute function on_insert()",
    "create constraint trigger at_commit after insert on bait deferrable initially deferred for each row"
    " execute function on_insert()",
    "alter table bait enable always trigger on_insert",
    "create rule looked as on update to bait do also select public.spy('rule')",
    # What is calculated or checked when rows come.
    "create table made (a int, b int generated always as (public.spy_in('generated', a)) stored)",
    "insert into made values (1)",
    "alter table made add check (public.definer(a) > 0)",
    "create domain checked as int default public.spy('domain default') check (public.spy_in('domain', value) > 0)",
    "create table of_domain (a checked, b checked[])",
    "insert into of_domain values (1, '{2}')",
    "create table parted (a int) partition by range ((public.spy_in('partition', a)))",
    "create table part partition of parted for values from (0) to (100)",
    "insert into parted values (1)",
    "create statistics watched on (public.spy_in('statistics', a)), a from bait",
    "create policy watched on bait using (public.spy('policy') = 1)",
    "alter table bait enable row level security",
    "create function spy_sum(total int, a int) returns int language plpgsql as"
    " $$ begin return total + public.spy('aggregate'); end $$",
    "create aggregate spied (int) (sfunc = spy_sum, stype = int, initcond = '0')",
    "create materialized view summed as select public.spied(a) from bait",
    "create type wrapped as (a int)",
    "create function to_wrapped(int) returns wrapped language sql as"
    " $$ select row(public.spy('cast'))::public.wrapped $$",
    "create cast (int as wrapped) with function to_wrapped(int) as assignment",
    # Beside what an extension has, under the names that it uses.
    "create extension citext",
    "create table cited (a citext)",
    "insert into cited values ('A'), ('b')",
    "create unique index on cited (a)",
    "create function public.citext_eq(citext, text) returns bool language sql as"
    " $$ select public.spy('extension') = 1 $$",
    "create operator public.= (leftarg = citext, rightarg = text, function = public.citext_eq)",
    # Large objects, and a comment for psql on one.
    "select lo_from_bytea(815, 'large')",
    "grant select on large object 815 to public",
    "comment on large object 815 is E'\\n\\\\! touch {mark}\\n'",
    # Functions and operators in the way of what pg_dump asks.
    "create schema evil",
    "create function evil.pg_get_viewdef(oid) returns text language sql as $$ select public.spy('shadow')::text $$",
    "create function evil.set_config(text, text, bool) returns text language sql as"
    " $$ select public.spy('shadow')::text $$",
    "create function evil.same(name, name) returns bool language sql as $$ select public.spy('operator') = 1 $$",
    "create operator evil.= (leftarg = name, rightarg = name, function = evil.same)",
    "create table evil.pg_class (oid oid, relname name)",
    # What is meant for a shell or for psql, in names and comments that dumps write out.
    'create table "x\n\\! touch {mark}\n--" (a int)',
    'create table "y\n; drop schema plainsql cascade; alter role {superuser} rename to gone; --" (a int)',
    "comment on table bait is E'\\n\\\\! touch {mark}\\n\\\\connect postgres {superuser}'",
    # Settings that every session of the role starts with.
    "alter role current_user set search_path = evil, public",
    "alter role current_user set default_transaction_read_only = on",
    "alter role current_user set statement_timeout = 1",
    "alter role current_user set row_security = on",
]


# What pg_restore and ANALYZE run, as the owner. The rest is only defined.
RUN_BY_A_RESTORE = {
    "index", "matview", "aggregate", "generated", "security definer", "domain", "partition", "statistics",
}  # fmt: skip


def lay_traps(stage: Stage, mark: Path) -> None:
    """Make the traps in the database `main`. Then none of them has run."""
    with stage.owner() as owner:
        for trap in TRAPS:
            owner.execute(trap.replace("{mark}", str(mark)).replace("{superuser}", SUPERUSER))
        # Any role can tell of itself there.
        owner.execute("grant all on seen to public")
        owner.execute("truncate seen")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def trapped(stage: Stage, mark: Path) -> Stage:
    lay_traps(stage, mark)
    return stage


def test_no_trap_runs_with_more_rights_than_its_customers(trapped: Stage, tmp_path: Path, mark: Path) -> None:
    stage = trapped
    before = superusers(stage)
    file = stage.backup(tmp_path / "main.backup")
    with stage.admin() as admin:
        # A dump reads in a transaction that cannot write, so that spies of it would have seen nothing anyway.
        assert admin.execute("select * from public.seen").fetchall() == []
    stage.run("restore", "--org", "acme", "copy", "--input", str(file))
    _, owner, _ = stage.names("copy")
    with stage.admin("copy") as admin:
        seen = admin.execute("select place, who, login, super from public.seen").fetchall()
        assert {(who, login, is_super) for _, who, login, is_super in seen} == {(owner, owner, False)}
        assert {place for place, *_ in seen} == RUN_BY_A_RESTORE
        assert admin.execute("select to_regclass('plainsql.trapped')").fetchone() == (None,)
        functions = "select count(*) from pg_proc where pronamespace = 'plainsql'::regnamespace"
        # Five of the record's, the guard of grants, and four about extensions.
        assert admin.execute(functions).fetchone() == (10,)
    assert superusers(stage) == before
    assert not mark.exists()
    assert stage.checksums("copy").keys() == stage.checksums().keys()


def superusers(stage: Stage) -> list[tuple[str, bool, bool]]:
    with stage.postgres.connect() as admin:
        return powerful(admin)


def powerful(admin: psycopg.Connection) -> list[tuple[str, bool, bool]]:
    """The roles that can do more than a customer's, and whether they are superusers and can make roles."""
    rows = admin.execute("select rolname, rolsuper, rolcreaterole from pg_roles where rolsuper or rolcreaterole")
    return sorted(rows.fetchall())


def test_the_programs_log_in_as_the_customers_role_and_never_as_the_admin(trapped: Stage, tmp_path: Path) -> None:
    """By the cell's own log of connections."""
    stage = trapped
    with stage.postgres.connect() as admin:
        admin.execute("alter system set log_connections = on")
        admin.execute("select pg_reload_conf()")
    log = Path(stage.postgres.socket_dir) / "log"
    start = log.stat().st_size
    try:
        stage.run("restore", "--org", "acme", "copy", "--input", str(stage.backup(tmp_path / "main.backup")))
    finally:
        with stage.postgres.connect() as admin:
            admin.execute("alter system reset log_connections")
            admin.execute("select pg_reload_conf()")
    logged = log.read_bytes()[start:].decode(errors="replace")
    # No test may leave lines of a tenant's session in a log; this one asked for them.
    os.truncate(log, start)
    roles = {main: owner for main, owner, _ in (stage.names(), stage.names("copy"))}
    lines = [line for line in logged.splitlines() if "authorized: user=" in line]
    by_program = [line for line in lines if line.endswith(("=plainsql-backup", "=plainsql-restore"))]
    assert len(by_program) >= 4, logged
    for line in by_program:
        user, database = (line.split(f"{word}=")[1].split()[0] for word in ("user", "database"))
        expected = roles[database]
        assert user == (backup_role_of(expected) if line.endswith("=plainsql-backup") else expected)
    assert not any("pg_dump" in line or "pg_restore" in line for line in lines if SUPERUSER in line)


def test_a_failed_restore_leaves_nothing_behind(stage: Stage, tmp_path: Path) -> None:
    """A function that counts on a search_path: the restore fails as a whole and says why."""
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
        owner.execute(
            "create function counted() returns bigint language plpgsql as"
            " $$ begin return (select count(*) from t); end $$"
        )
        owner.execute("create materialized view kept as select counted()")
    before = stage.on_cell()
    file = stage.backup(tmp_path / "main.backup")
    for arguments in (["copy"], ["main", "--replace"]):
        failed = stage.run("restore", "--org", "acme", *arguments, "--input", str(file), exit_code=1)
        assert 'relation "t" does not exist' in failed.stderr
        assert len(failed.stderr.splitlines()[-1]) < 1000
    assert stage.on_cell() == before
    assert stage.ask("select name, state from databases where state <> 'deleted'") == [("main", "ready")]


def test_endless_notices_neither_block_a_restore_nor_hide_its_error(stage: Stage, tmp_path: Path) -> None:
    """It runs while the rows' index is made anew, and knows by its session's name that this is a restore."""
    with stage.owner() as owner:
        owner.execute("create table loud (a int)")
        owner.execute("insert into loud values (1)")
        owner.execute(
            """
            create function shout(a int) returns int language plpgsql immutable as $$
            begin
                if current_setting('application_name') = 'plainsql-restore' then
                    raise warning '%', repeat('many words ', 300000);
                    raise exception '%', 'for no reason ' || repeat('at all ', 500000);
                end if;
                return a;
            end $$
            """
        )
        owner.execute("create index on loud (shout(a))")
    before = stage.on_cell()
    file = stage.backup(tmp_path / "main.backup")
    failed = stage.run("restore", "--org", "acme", "copy", "--input", str(file), exit_code=1)
    assert "for no reason" in failed.stderr
    assert len(failed.stderr) < 2_000
    assert stage.on_cell() == before
