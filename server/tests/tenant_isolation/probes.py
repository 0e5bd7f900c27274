"""Attempts to get out of a tenant's database, each one statement.

Owns the list. A probe that succeeds is an escape; one that only looks as if it had succeeded where it did nothing, as
GRANT does, has a proof that the superuser is asked for afterwards. A probe for a leak divides by the number of rows
that it must not see, so that it fails when it sees none. `{…}` stands for names of the cell that is probed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    """One attempt."""

    name: str
    sql: str
    proof: str | None = None
    """What the superuser asks for, true if the attempt worked."""
    impossible: str | None = None
    """Why it does not even work for a superuser, if it does not: then only the refusal is shown."""
    majors: tuple[int, ...] = (15, 18)
    """Where a superuser can do it."""


def _do(name: str, code: str) -> Probe:
    return Probe(name, f"do $$ begin {code}; end $$")


def _executed(name: str, statement: str) -> Probe:
    return _do(name, f"execute '{statement.replace(chr(39), chr(39) * 2)}'")


def _sees(name: str, rows: str, **more: str) -> Probe:
    return Probe(name, f"select 1 / count(*) from {rows}", **more)  # type: ignore[arg-type]


FILES = [
    _executed("a program's output is read", "create temp table probe_l (l text); copy probe_l from program 'id'"),
    _executed("a program gets rows", "copy (select 1) to program 'cat > /dev/null'"),
    _executed("a file is read by COPY", "create temp table probe_l (l text); copy probe_l from '/etc/passwd'"),
    _executed("a file is written by COPY", "copy (select 1) to '{folder}/probe-written'"),
    Probe("COPY in the open", "copy (select 1) to '{folder}/probe-written'"),
    Probe("COPY to a program in the open", "copy (select 1) to program 'cat > /dev/null'"),
    Probe("a file is read", "select pg_read_file('/etc/passwd')"),
    Probe("a file of the cluster's is read", "select pg_read_file('PG_VERSION')"),
    Probe("the login rules are read", "select pg_read_file('pg_hba.conf')"),
    Probe("a file is read as bytes", "select pg_read_binary_file('/etc/passwd')"),
    Probe("a folder is listed", "select pg_ls_dir('/')"),
    Probe("a file is looked at", "select * from pg_stat_file('/etc/passwd')"),
    Probe("the log of changes is listed", "select * from pg_ls_waldir()"),
    Probe("temporary files are listed", "select * from pg_ls_tmpdir()"),
    Probe("a large object is made of a file", "select lo_import('/etc/passwd')"),
    _do("a large object is written to a file", "perform lo_create(4711); perform lo_export(4711, '{folder}/probe')"),
    Probe("a library is loaded", "load '$libdir/plpgsql'"),
    Probe("the data folder is shown", "select 1 / length(current_setting('data_directory'))"),
    Probe("the path of pg_hba.conf is shown", "select 1 / length(current_setting('hba_file'))"),
    _sees("the build's paths are shown", "pg_config"),
    _sees("the lines of pg_hba.conf are shown", "pg_hba_file_rules"),
    _sees("the lines of the configuration are shown", "pg_file_settings"),
]

CODE = [
    Probe("a function in machine code", "create function probe_c() returns language_handler language c"
          " as '$libdir/plpgsql', 'plpgsql_call_handler'"),
    Probe("a function of the engine's insides", "create function probe_i(int, int) returns int language internal"
          " as 'int4pl'"),
    Probe("a language", "create language probe_language handler plpgsql_call_handler"),
    Probe("an access method", "create access method probe_method type index handler bthandler"),
    Probe("a cast without a function", "create cast (text as bytea) without function"),
    Probe("an operator class", "create operator class probe_class for type int4 using btree"
          " as function 1 btint4cmp(int4, int4)"),
    Probe("a template of text search", "create text search template probe_template"
          " (init = dsimple_init, lexize = dsimple_lexize)"),
    Probe("an event trigger", "create event trigger probe_trigger on ddl_command_start"
          " execute function plainsql.check_extensions()"),
    Probe("a wrapper of foreign data", "create foreign data wrapper probe_wrapper"),
    Probe("a subscription", "create subscription probe_subscription connection 'host=127.0.0.1 port=1'"
          " publication p with (connect = false)"),
    Probe("a publication of all tables", "create publication probe_publication for all tables"),
    Probe("a table space", "create tablespace probe_space location '{folder}/space'"),
    Probe("a function that raises its own limit", "create function probe_limit() returns int language sql"
          " set temp_file_limit = -1 as 'select 1'"),
]  # fmt: skip

EXTENSIONS = [
    *(
        Probe(f"the extension {name}", f'create extension "{name}"')
        for name in (
            "dblink", "postgres_fdw", "file_fdw", "pageinspect", "pg_buffercache", "pgstattuple", "amcheck",
            "pg_stat_statements", "pg_visibility", "pg_freespacemap", "pg_prewarm", "pg_surgery", "pg_walinspect",
        )
    ),
    # Those that PostgreSQL trusts, and that only our list of what is offered refuses.
    *(
        Probe(f"the trusted extension {name}", f'create extension "{name}"',
              proof=f"select exists (select from pg_extension where extname = '{name}')")
        for name in ("tablefunc", "intarray", "lo", "tcn", "ltree", "isn", "cube", "seg", "dict_int",
                     "tsm_system_rows", "tsm_system_time")
    ),
    *(
        Probe(f"an extension in the schema {schema}", f"create extension {name} schema {schema}",
              proof=f"select exists (select from pg_extension where extnamespace = '{schema}'::regnamespace"
              f" and extname = '{name}')")
        for name, schema in (("citext", "pg_catalog"), ("hstore", "plainsql"), ("unaccent", "information_schema"))
    ),
    Probe("an extension is allowed by a setting", "alter database postgres"
          " set plainsql.extensions = 'tablefunc'"),
    Probe("extensions are listed otherwise", "create or replace view pg_catalog.pg_available_extensions as select 1",
          impossible="the engine refuses it without a special setting"),
    Probe("the guard of extensions gives no advice", "drop event trigger plainsql_advise_extensions"),
    Probe("an extension with what it needs", "create extension earthdistance cascade"),
    _executed("an extension within a block", "create extension bloom"),
    Probe("the guard of extensions is set off", "alter event trigger plainsql_check_extensions disable"),
    Probe("the guard of extensions is replaced", "create or replace function plainsql.check_extensions()"
          " returns event_trigger language plpgsql as 'begin end'"),
    Probe("the guard of extensions is dropped", "drop event trigger plainsql_check_extensions"),
    Probe("the guard of grants is set off", "alter event trigger plainsql_check_grants disable"),
    Probe("the guard's function is dropped", "drop function plainsql.check_extensions() cascade"),
    Probe("guards are off by a setting", "set event_triggers = off", majors=(18,)),
]  # fmt: skip

ROLES = [
    Probe("to be the superuser", "set role {admin}"),
    Probe("to be the superuser for the session", "set session authorization {admin}"),
    Probe("to become another tenant", "set role {other_owner}"),
    Probe("to become another tenant for the session", "set session authorization {other_owner}"),
    _do("to become another tenant by a function", "perform set_config('role', '{other_owner}', false)"),
    Probe("a role", "create role probe_role"),
    Probe("a user", "create user probe_user superuser"),
    *(
        Probe(f"one's own role gets {attribute}", f"alter role {{owner}} {attribute}",
              proof=f"select {column} from pg_roles where rolname = '{{owner}}'")
        for attribute, column in (("superuser", "rolsuper"), ("createdb", "rolcreatedb"),
                                  ("createrole", "rolcreaterole"), ("replication", "rolreplication"),
                                  ("bypassrls", "rolbypassrls"))
    ),
    Probe("no limit of connections", "alter role {owner} connection limit -1"),
    Probe("another name", "alter role {owner} rename to probe_renamed", impossible="it would end the other probes"),
    Probe("another tenant's settings", "alter role {other_owner} set work_mem = '1MB'"),
    Probe("another tenant's password", "alter role {other_owner} password 'probe'"),
    Probe("another tenant's end", "drop role {other_reader}", impossible="its database needs it"),
    Probe("another tenant's comment", "comment on role {other_owner} is 'probe'"),
    *(
        Probe(f"to be a member of {name}", f"grant {name} to {{owner}}")
        for name in ("{admin}", "{other_owner}", "pg_read_server_files", "pg_execute_server_program", "pg_monitor",
                     "pg_signal_backend", "pg_write_all_data", "pg_read_all_data", "pg_checkpoint")
    ),
    Probe("one's own role for another tenant", "grant {owner} to {other_reader}"),
    Probe("another tenant's things to oneself", "reassign owned by {other_owner} to {owner}"),
    Probe("another tenant's things dropped", "drop owned by {other_reader}"),
    Probe("privileges on what another will make", "alter default privileges for role {other_owner} grant all on tables"
          " to {owner}"),
    Probe("a right for another tenant, who could not be dropped then", "grant usage on schema public to {other_owner}"),
    Probe("a right ahead for another tenant", "alter default privileges grant select on tables to {other_owner}"),
    _executed("a policy for another tenant", "create table probe_policy (a int);"
              " create policy probe_policy on probe_policy to {other_owner} using (true)"),
    Probe("a schema with a right for another tenant", "create schema probe_schema create table probe_table (a int)"
          " grant select on probe_table to {other_owner}"),
    Probe("everybody's settings", "alter role all set work_mem = '1MB'"),
    Probe("one's own pinned settings", "alter role {owner} set temp_file_limit = -1"),
    Probe("one's own pinned settings, all", "alter role {owner} reset all", proof="select not exists (select from"
          " pg_db_role_setting where setrole = '{owner}'::regrole and 'temp_file_limit=1GB' = any (setconfig))"),
    Probe("rights of the engine's functions", "grant execute on function pg_notify(text, text) to public",
          proof="select has_function_privilege('public', 'pg_notify(text, text)', 'execute')"),
]  # fmt: skip

DATABASES = [
    Probe("a database", "create database probe_database"),
    Probe("another tenant's database dropped", "drop database {other_database}", impossible="later probes need it"),
    Probe("another tenant's database set", "alter database {other_database} set work_mem = '1MB'"),
    Probe("another tenant's database's size", "select pg_database_size('{other_database}')"),
    Probe("one's own database for all", "grant connect on database {database} to public",
          proof="select has_database_privilege('public', '{database}', 'connect')"),
    Probe("one's own database owned", "alter database {database} owner to {owner}"),
    Probe("one's own database's limit", "alter database {database} connection limit 7"),
    Probe("one's own database's settings", "alter database {database} set work_mem = '1MB'"),
    Probe("a comment on one's database", "comment on database {database} is 'probe'"),
    Probe("the server's settings", "alter system set work_mem = '1MB'"),
    Probe("the list of databases", "update pg_database set datconnlimit = datconnlimit"),
    Probe("the list of members", "delete from pg_auth_members where member = 1"),
    Probe("the list of roles", "update pg_authid set rolconnlimit = rolconnlimit"),
    Probe("the list of functions", "update pg_proc set proacl = proacl where proname = 'pg_notify'"),
    Probe("the index of the whole database", "reindex database {database}"),
    Probe("the indexes of its catalogs", "reindex system {database}"),
    Probe("a table among the engine's own", "create table pg_catalog.probe_table (a int)",
          impossible="nobody can without allow_system_table_mods"),
]  # fmt: skip

LEAKS = [
    _sees("secrets of roles", "pg_authid"),
    _sees("passwords", "pg_shadow"),
    _sees("samples of values in all tables", "pg_statistic"),
    _sees("addresses of subscriptions", "(select subconninfo from pg_subscription union all select 'x') as s"),
    _sees("shared memory", "pg_shmem_allocations"),
    _sees("memory of backends", "pg_backend_memory_contexts"),
    _sees("what other tenants run", "pg_stat_activity where usename = '{other_owner}' and query like 'select %'"),
    _sees("names of organizations", "pg_database where datname ~ 'acme|victim'", impossible="names are random"),
    _sees("names of organizations in comments", "pg_shdescription where description ~ 'acme|victim'",
          impossible="there is no such comment"),
    Probe("the size of all databases", "select pg_tablespace_size('pg_default')"),
    _sees("which databases there are in a table space", "pg_tablespace_databases(1663)"),
]  # fmt: skip

OTHER_TENANTS = [
    *(
        _sees(f"{verb} of {whom}", f"(select pg_{verb}_backend(pid) from pg_stat_activity"
              f" where usename = '{{{whom}}}' and application_name = 'probe-target' offset 0) as x")
        for verb in ("cancel", "terminate")
        for whom in ("admin", "other_owner")
    ),
    Probe("the statistics set back", "select pg_stat_reset()"),
    Probe("the shared statistics set back", "select pg_stat_reset_shared('bgwriter')"),
    Probe("the log made longer", "select pg_log_backend_memory_contexts(pg_backend_pid())"),
    Probe("the configuration read again", "select pg_reload_conf()"),
    Probe("a new file of changes", "select pg_switch_wal()"),
    Probe("a point to restore to", "select pg_create_restore_point('probe')"),
    Probe("a checkpoint", "checkpoint"),
    Probe("a slot of replication", "select pg_create_physical_replication_slot('probe_slot')"),
    Probe("an origin of replication", "select pg_replication_origin_create('probe_origin')"),
    _do("a lock on a shared catalog", "lock table pg_catalog.pg_authid in access exclusive mode"),
    _do("a lock on a catalog", "lock table pg_catalog.pg_class in share mode"),
    Probe("a message in the log of changes", "select pg_logical_emit_message(false, 'a', 'b')"),
    Probe("a notification", "select pg_notify('a', 'b')"),
    Probe("NOTIFY in the open", "notify probe"),
    Probe("LISTEN in the open", "listen probe"),
    Probe("a prepared transaction", "prepare transaction 'probe'", impossible="it takes a transaction"),
    Probe("the end of a prepared transaction", "commit prepared 'probe'", impossible="there is none"),
    Probe("prepared transactions are listed", "select * from pg_prepared_xacts"),
    Probe("prepared transactions are listed by the function", "select * from pg_prepared_xact()"),
    Probe("locks are listed", "select * from pg_locks"),
    *(
        Probe(f"the table of locks by {call}", f"select {call}")
        for call in (
            "pg_lock_status()", "pg_blocking_pids(pg_backend_pid())",
            "pg_safe_snapshot_blocking_pids(pg_backend_pid())",
            "pg_isolation_test_session_is_blocked(pg_backend_pid(), '{}')",
        )
    ),
    Probe("a snapshot for others", "select pg_export_snapshot()"),
    *(
        Probe(f"the lock of {call}", f"select {call}")
        for call in (
            "pg_advisory_lock(1)", "pg_catalog.pg_advisory_lock(1, 2)", "pg_advisory_lock_shared(1)",
            "pg_advisory_xact_lock(1)", "pg_advisory_xact_lock_shared(1)", "pg_try_advisory_lock(1)",
            "pg_try_advisory_lock_shared(1)", "pg_try_advisory_xact_lock(1)", "pg_try_advisory_xact_lock_shared(1)",
            "pg_advisory_unlock_all()",
        )
    ),
    _do("a lock within a block", "perform pg_advisory_lock(2)"),
    _executed("a lock by a text within a block", "select pg_advisory_lock(g) from generate_series(1, 9) g"),
]  # fmt: skip

SETTINGS = [
    *(
        Probe(f"the setting {name}", f"set {name} = {value}")
        for name, value in (
            ("temp_file_limit", "-1"), ("log_statement", "'all'"), ("log_min_messages", "'debug5'"),
            ("log_min_duration_statement", "0"), ("session_replication_role", "'replica'"),
            ("zero_damaged_pages", "on"), ("dynamic_library_path", "'/tmp'"),
            ("session_preload_libraries", "'x'"), ("max_stack_depth", "'1MB'"), ("deadlock_timeout", "'1h'"),
            ("ignore_checksum_failure", "on"), ("lc_messages", "'C'"), ("allow_system_table_mods", "on"),
            ("lo_compat_privileges", "on"), ("track_activities", "off"),
        )
    ),
    Probe("a setting by a function", "select set_config('log_statement', 'all', false)"),
    Probe("a setting by the view", "update pg_settings set setting = 'all' where name = 'log_statement'"),
    _do("a setting within a block", "set log_statement = 'all'"),
]  # fmt: skip

RECORDS = [
    Probe("the record's secret", "select 1 / count(*) from plainsql.secrets"),
    Probe("a record read", "select * from plainsql.requests"),
    Probe("a record made up", "insert into plainsql.requests values ('k', 'r', '\\x00')"),
    Probe("a record's answer made up", "insert into plainsql.responses values ('k2', '\\x00')"),
    Probe("a record with a guessed secret", "select plainsql.claim('guess', 'k', 'r', '\\x00')",
          impossible="nobody can without the secret"),
    Probe("all records looked through", "select * from plainsql.look_up('guess', 'k')",
          impossible="nobody can without the secret"),
    Probe("a trigger on records", "create trigger probe_trap before insert on plainsql.requests for each row"
          " execute function suppress_redundant_updates_trigger()", impossible="not for an INSERT"),
    Probe("a rule on records", "create rule probe_rule as on insert to plainsql.requests do also select 1"),
    Probe("a table beside the records", "create table plainsql.probe_table (a int)"),
    Probe("the secret's check replaced", "create or replace function plainsql.check_secret(sent text) returns void"
          " language sql as ''", impossible="it would open the record"),
    Probe("the records' schema renamed", "alter schema plainsql rename to probe_schema",
          impossible="the service needs it"),
    Probe("the records' schema dropped", "drop schema plainsql cascade", impossible="the service needs it"),
]  # fmt: skip

PROBES = [*FILES, *CODE, *EXTENSIONS, *ROLES, *DATABASES, *LEAKS, *OTHER_TENANTS, *SETTINGS, *RECORDS]
