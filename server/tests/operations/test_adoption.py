"""A database that is on a cell and not in the directory is adopted, unless something about it is suspicious."""

import json

import pytest

from server.tests.operations.stage import Stage

_FORGET = [
    "delete from roles where database_id in (select id from databases where name = %s)",
    "delete from databases where name = %s",
]


@pytest.fixture
def unknown(stage: Stage) -> str:
    """The name on its cell of a database that the directory has forgotten."""
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
        owner.execute("create function f() returns int language sql as 'select 1'")
    engine_name = stage.names()[0]
    for statement in _FORGET:
        stage.ask(statement, "main")
    return engine_name


def adopt(stage: Stage, engine_name: str, exit_code: int = 0) -> str:
    arguments = ("database", "adopt", "--org", "acme", "--cell", "local", "--name", "found", engine_name)
    ended = stage.run(*arguments, exit_code=exit_code)
    return ended.stderr if exit_code else ended.stdout.strip()


def test_an_unknown_database_is_adopted_with_its_content(stage: Stage, unknown: str) -> None:
    id_ = adopt(stage, unknown)
    (listed,) = json.loads(stage.run("database", "list", "--cell", "local", "--json").stdout)
    assert (listed["id"], listed["engine_name"], listed["state"]) == (id_, unknown, "ready")
    assert listed["without_code"] is False, "it may contain code"
    with stage.owner("found") as owner:
        assert owner.execute("select a, f() from t").fetchone() == (1, 1)
    assert "The directory knows" in adopt(stage, unknown, exit_code=1)


SUSPICIOUS = {
    "is a member of": "grant pg_read_all_data to {owner}",
    "privileges that customers' roles": "alter role {owner} createrole",
    "has a password": "alter role {reader} password 'known'",
    "setting session_preload_libraries": "alter role {owner} set session_preload_libraries = 'auto_explain'",
    "PUBLIC has privileges": "grant connect on database {database} to public",
    "one owner and one reader": "grant connect on database {database} to pg_monitor",
    "does not belong to a superuser": "alter database {database} owner to {owner}",
    "does not accept connections": "alter database {database} allow_connections false",
    "run `plainsql-server upgrade`": "comment on database {database} is 'old'",
}


def test_a_suspicious_database_is_not_adopted(stage: Stage) -> None:
    names = dict(zip(("database", "owner", "reader"), stage.names(), strict=True))
    for statement in _FORGET:
        stage.ask(statement, "main")
    undo = [
        "revoke pg_read_all_data from {owner}", "alter role {owner} nocreaterole", "alter role {reader} password null",
        "alter role {owner} reset session_preload_libraries", "revoke connect on database {database} from public",
        "revoke connect on database {database} from pg_monitor",
        "alter database {database} owner to plainsql_admin; grant connect, create on database {database} to {owner}",
        "alter database {database} allow_connections true", "select 1",
    ]  # fmt: skip
    with stage.postgres.connect() as admin:
        for (expected, statement), undone in zip(SUSPICIOUS.items(), undo, strict=True):
            admin.execute(statement.format(**names))
            assert expected in adopt(stage, names["database"], exit_code=1)
            admin.execute(undone.format(**names))
    with stage.postgres.connect(database=names["database"]) as admin:
        admin.execute("create function public.trap() returns int security definer language sql as 'select 1'")
    assert "trap() runs as a superuser" in adopt(stage, names["database"], exit_code=1)
    assert stage.ask("select from databases") == []
