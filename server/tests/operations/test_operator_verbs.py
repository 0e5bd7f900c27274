"""The operator's commands about organizations and databases: what they change, print and leave in the audit log."""

import csv
import io
import json
import os
import pwd
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from plainsql_server.core.credential import is_well_formed
from plainsql_server.directory.rights.grants import Role
from server.tests import plain_http
from server.tests.load import running_node
from server.tests.operations.stage import Stage
from server.tests.postgres import as_role
from server.tests.processes import wait_for


def audited(stage: Stage) -> list[tuple[Any, ...]]:
    return stage.ask("select actor_kind, actor_id, action from audit order by at, id")


def as_json(stage: Stage, *arguments: str) -> Any:
    return json.loads(stage.run(*arguments, "--json").stdout)


def test_a_signup_gets_a_url_a_database_and_a_key(stage: Stage) -> None:
    public = replace(stage, settings={"PLAINSQL_DATA_URL": "https://db.example"})
    made = as_json(public, "org", "create", "New Ltd", "--database", "main", "--key", "first")
    assert (made["url"], made["database"]) == ("https://db.example", "main")
    assert is_well_formed(made["key"])
    printed = public.run("org", "create", "Other Ltd", "--database", "main", "--key", "first").stdout.split()
    assert printed[1] == "https://db.example"
    with running_node(stage.dsn) as node:
        for key in (made["key"], printed[2]):
            answer = post(node.port, key, "select 1 as one")
            assert answer.json()["rows"] == [{"one": 1}]


def post(port: int, key: str, statement: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return plain_http.post(f"http://127.0.0.1:{port}/v1/query", headers=headers, json={"sql": statement}, timeout=60)


def test_a_suspended_organization_is_refused_and_resumed_and_gets_another_tier(stage: Stage) -> None:
    made = as_json(stage, "org", "create", "New Ltd", "--database", "main", "--key", "first")
    with running_node(stage.dsn) as node:

        def status() -> int:
            return post(node.port, made["key"], "select 1").status_code

        assert status() == 200
        assert as_json(stage, "org", "suspend", "New Ltd")["suspended_at"]
        wait_for(lambda: status() == 403, 30, lambda: "it is not refused")
        assert "suspended your organization" in post(node.port, made["key"], "select 1").text
        assert as_json(stage, "org", "resume", "New Ltd")["suspended_at"] is None
        wait_for(lambda: status() == 200, 30, lambda: "it is still refused")
    assert as_json(stage, "org", "set-tier", made["organization_id"], "standard")["tier"] == "standard"
    stage.run("org", "set-tier", "New Ltd", "golden", exit_code=2)
    stage.run("org", "suspend", "Nobody", exit_code=1)


def test_a_database_is_renamed_and_deleted_by_name_or_id(stage: Stage) -> None:
    renamed = as_json(stage, "database", "rename", "--org", "acme", "main", "shop")
    assert renamed["name"] == "shop"
    assert "--org" in stage.run("database", "rename", "shop", "other", exit_code=2).stderr
    assert "Add --yes" in stage.run("database", "delete", renamed["id"], exit_code=2).stderr
    assert as_json(stage, "database", "delete", renamed["id"], "--yes")["restores_to"] == "ready"
    deleted = as_json(stage, "database", "delete", "--org", "acme", "shop", "--permanently", "--yes")
    assert deleted["state"] == "deleted"
    assert stage.on_cell()["lost"] == set()
    with stage.postgres.connect() as admin:
        assert not admin.execute("select from pg_database where datname = %s", (renamed["engine_name"],)).rowcount
    stage.run("database", "delete", "--org", "acme", "shop", "--yes", exit_code=1)


def test_usage_of_all_organizations_is_reported_as_csv_and_json(stage: Stage) -> None:
    stage.run("org", "create", 'Comma, "Ltd"', "--database", "main")
    stage.ask(
        "insert into usage (organization_id, day, database_id, requests, rows, engine_us, bytes)"
        " select organization_id, day::date, id, 2, 3, 4, 5 from databases,"
        " unnest(array['2026-01-30', '2026-01-31', '2026-02-01']) day"
    )
    days = ("--from", "2026-01-31", "--to", "2026-02-01")
    rows = list(csv.DictReader(io.StringIO(stage.run("usage", *days).stdout)))
    assert [(row["day"], row["organization"], row["requests"]) for row in rows] == [
        (day, name, "2") for day in ("2026-01-31", "2026-02-01") for name in ("acme", 'Comma, "Ltd"')
    ]
    lines = stage.run("usage", *days, "--format", "json").stdout.splitlines()
    assert [{name: str(value) for name, value in json.loads(line).items()} for line in lines] == rows
    assert len(stage.run("usage", *days, "--org", "acme").stdout.splitlines()) == 3
    stage.run("usage", "--from", "2026-02-01", "--to", "2026-01-01", exit_code=2)


NEEDLE = "Zebra Needle"


def found_in(dsn: str, texts: list[str]) -> set[str]:
    """The tables of the directory that contain one of these texts."""
    with psycopg.connect(dsn) as directory:
        tables = directory.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        query = sql.SQL("select from {} t where t::text ~* any(%s)")
        return {name for (name,) in tables if directory.execute(query.format(sql.Identifier(name)), (texts,)).rowcount}


@pytest.mark.chaos
def test_a_purged_organization_leaves_only_what_is_listed_with_requests_in_flight(stage: Stage) -> None:
    made = as_json(stage, "org", "create", NEEDLE, "--database", "main", "--key", "zebrakey")
    for name in ("zebra-two", "zebra-three"):
        stage.run("database", "create", "--org", NEEDLE, name)
    stage.run("database", "delete", "--org", NEEDLE, "zebra-three", "--yes")
    names = stage.ask(
        "select d.id, d.engine_name, r.engine_name from databases d join roles r on r.database_id = d.id"
        " where d.organization_id = %s", made["organization_id"],
    )  # fmt: skip
    other = as_json(stage, "org", "create", "Stays", "--database", "main", "--key", "k")
    with running_node(stage.dsn) as node:
        assert post(node.port, made["key"], "create table t as select 1").status_code == 200
        with plain_http.client() as client:
            sleeping = client.build_request(
                "POST", f"http://127.0.0.1:{node.port}/v1/query", headers={"Authorization": f"Bearer {made['key']}"},
                json={"sql": "select pg_sleep(60)"},
            )  # fmt: skip
            with ThreadPoolExecutor(1) as thread:
                running = thread.submit(client.send, sleeping)
                wait_for(lambda: is_sleeping(stage), 30, lambda: "it does not run")
                purged = as_json(stage, "org", "delete", NEEDLE, "--purge", "--yes")
                assert running.result(60).status_code in (401, 403, 503)
        assert purged["databases_dropped"] == 3
        assert any("audit log" in line for line in purged["left"])
        wait_for(lambda: post(node.port, made["key"], "select 1").status_code == 401, 30, lambda: "still served")
        assert post(node.port, other["key"], "create table t as select 1").status_code == 200
        # What others use is counted, although usage of the purged databases was reported with it.
        used = "select from usage where organization_id = %s"
        wait_for(lambda: bool(stage.ask(used, other["organization_id"])), 60, lambda: "no usage of others")
    ids = [made["organization_id"], made["key_id"], *(str(row[0]) for row in names)]
    assert found_in(stage.dsn, ids) == {"audit"}
    assert found_in(stage.dsn, ["zebra", *(text for row in names for text in row[1:])]) == set()
    with stage.postgres.connect() as admin:
        engine_names = [text for row in names for text in row[1:]]
        query = (
            "select datname from pg_database where datname = any(%s)"
            " union select rolname from pg_roles where rolname = any(%s)"
        )
        assert admin.execute(query, (engine_names, engine_names)).fetchall() == []
    stage.run("org", "delete", NEEDLE, "--purge", "--yes", exit_code=1)


def is_sleeping(stage: Stage) -> bool:
    with stage.postgres.connect() as admin:
        return (
            admin.execute(
                "select from pg_stat_activity where query ~ 'pg_sleep.60' and pid <> pg_backend_pid()"
            ).rowcount
            > 0
        )


def test_a_purge_that_a_cell_prevents_can_be_repeated(stage: Stage) -> None:
    conninfo = stage.postgres.conninfo
    stage.ask("update cells set conninfo = 'host=/nowhere'")
    assert "closed, but not purged" in stage.run("org", "delete", "acme", "--purge", "--yes", exit_code=1).stderr
    stage.ask("update cells set conninfo = %s", conninfo)
    stage.run("org", "delete", "acme", "--purge", "--yes")
    assert stage.ask("select from organizations") == []
    stage.run("org", "delete", "acme", exit_code=2)


def test_operators_are_named_in_the_audit_log(stage: Stage, tmp_path: Path) -> None:
    named = replace(stage, settings={"PLAINSQL_OPERATOR": "ada"})
    by_sudo = replace(stage, settings={"SUDO_USER": "grace"})
    named.backup(tmp_path / "main.backup")
    named.run("database", "suspend", "--org", "acme", "main")
    by_sudo.run("database", "resume", "--org", "acme", "main")
    named.run("restore", "--org", "acme", "main", "--replace", "--input", str(tmp_path / "main.backup"))
    named.run("key", "create", "--org", "acme", "--name", "k", "--scope", "admin")
    named.run("top", "--once")
    named.run("usage")
    named.run("key", "list", "--org", "acme")
    named.run("database", "delete", "--org", "acme", "main", "--yes")
    noted = audited(stage)
    sudo_user = "grace" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    assert ("operator", sudo_user, "database.resume") in noted
    for action in ("database.backup", "database.suspend", "database.restore_backup", "key.create", "operator.top",
                   "operator.usage", "operator.key.list", "database.delete"):  # fmt: skip
        assert ("operator", "ada", action) in noted, action


def test_reading_works_while_the_directory_can_only_be_read_and_says_what_is_missing(
    stage: Stage, tmp_path: Path
) -> None:
    read_only = replace(stage, dsn=f"{stage.dsn} options='-c default_transaction_read_only=on'")
    before = audited(stage)
    for command in (("top", "--once"), ("usage",), ("org", "list"), ("database", "list", "--org", "acme"),
                    ("backup", "--org", "acme", "main", "--output", str(tmp_path / "main.backup"))):  # fmt: skip
        assert "missing in the audit log" in read_only.run(*command).stderr
    assert audited(stage) == before
    read_only.run("database", "suspend", "--org", "acme", "main", exit_code=1)


def test_reading_works_with_a_login_that_may_not_write_the_audit_log(stage: Stage) -> None:
    weak = replace(stage, settings={"PLAINSQL_DIRECTORY_DSN": as_role(stage.dsn, Role.DATA)})
    listed = weak.run("org", "list")
    assert "acme" in listed.stdout
    assert "missing in the audit log" in listed.stderr


def test_a_purge_has_more_time_than_the_statements_of_planes(stage: Stage) -> None:
    stage.ask("CREATE TABLE noted (timeout text)")
    stage.ask(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
        " INSERT INTO noted VALUES (current_setting('statement_timeout')); RETURN NULL; END $$"
    )
    stage.ask("CREATE TRIGGER note AFTER DELETE ON databases EXECUTE FUNCTION note()")
    stage.run("org", "delete", "acme", "--purge", "--yes")
    assert stage.ask("SELECT timeout FROM noted") == [("10min",)]
