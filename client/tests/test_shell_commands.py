"""The shell's commands and transactions, in scripts and on a terminal, and what asks before it deletes."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import plainsql
from client.tests.test_command import run
from client.tests.test_shell import Terminal, terminal  # noqa: F401  # a fixture
from plainsql.command.nouns import _successors
from plainsql.command.readable import readable_duration, readable_size, readable_time
from plainsql.command.statements import all_statements, transaction_word
from plainsql.control import Key
from server.tests.service import Service


@pytest.fixture
def table(db: plainsql.Client) -> Iterator[str]:
    name = f"shop_{uuid4().hex[:8]}"
    db.query(f"create table {name} (id int primary key, name text)")
    yield name
    db.query(f"drop table if exists {name}")


def environment_of(service: Service) -> dict[str, str]:
    settings = {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
    return {**os.environ, **settings, "PLAINSQL_CA_FILE": str(service.dev["ca_file"])}


def test_a_script_uses_commands_and_transactions(service: Service, table: str, tmp_path: Path) -> None:
    script = f"""
        \\dt {table}
        begin;
        insert into {table} values (1, 'two   \n  lines;');
        select count(*) from {table};
        commit;
        \\x
        select * from {table};
        \\copy {table} to '{tmp_path}/out.csv'
        delete from {table};
        \\copy {table} from {tmp_path}/out.csv with (format csv, header)
        \\copy (select id from {table}) to '{tmp_path}/out.ndjson'
        exit
        select 1 / 0;
    """
    done = run(service, input=script)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split(" | ") == [" schema", "name         ", "kind ", "row_estimate", "size"]
    assert lines[3:6] == [" count", "-------", "     1"]
    assert lines[6:] == ["-[ row 1 ]", "id   | 1", "name | two   ⏎  lines;"]
    assert (tmp_path / "out.ndjson").read_text() == '{"id":1}\n'


def test_timing_is_about_the_time_alone(service: Service, table: str) -> None:
    done = run(service, input=f"\\timing\ninsert into {table} values (1, 'one');\n")
    assert done.stderr.splitlines()[-2:] == ["Timing is off.", "INSERT 1 row"]


def test_a_transaction_of_a_script_is_all_or_nothing(service: Service, db: plainsql.Client, table: str) -> None:
    insert = f"insert into {table} values (1, 'x');"
    failed = run(service, input=f"begin; {insert} select 1 / 0; commit;")
    assert (failed.returncode, "Statement 2: " in failed.stderr) == (1, True)
    assert run(service, input=f"begin; {insert} rollback;").returncode == 0
    unfinished = run(service, input=f"begin; {insert}")
    assert (unfinished.returncode, "The transaction was not committed" in unfinished.stderr) == (2, True)
    assert db.query(f"select count(*) from {table}").value() == 0


def test_a_file_is_one_transaction_or_each_statement_by_itself(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.sql"
    script.write_text(f"-- two\nbegin;\ninsert into {table} values (1, ';');\nselect 7 as n; commit;\n-- end")
    done = run(service, "sql", "-f", str(script), "-o", "ndjson")
    assert (done.returncode, done.stdout) == (0, '{"n":7}\n')
    script.write_text(f"insert into {table} values (2, ''); select 1 / 0; insert into {table} values (3, '')")
    assert run(service, "sql", "-f", str(script)).returncode == 1
    assert db.query(f"select count(*) from {table}").value() == 1
    assert run(service, "sql", "--no-transaction", "-f", str(script)).returncode == 1
    assert db.query(f"select count(*) from {table}").value() == 2
    assert run(service, "sql", "vacuum; select 1", "--no-transaction").returncode == 0
    assert run(service, "sql", " ; -- nothing").returncode == 2


def test_a_failed_copy_ends_a_script_and_an_unknown_command_is_a_mistake(
    service: Service, table: str, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("id\nx\n")
    for target in ("nowhere", table):
        done = run(service, input=f"\\copy {target} from {tmp_path}/x.csv\nselect 1 as one;")
        assert (done.returncode, done.stdout) == (1, ""), target
    for wrong in ("\\nonsense", "\\copy what", "\\copy t from x.csv encoding latin1", "\\e", "\\o xml"):
        assert run(service, input=wrong).returncode == 2, wrong


def test_interrupting_exits_with_130(service: Service) -> None:
    command = [str(Path(sys.executable).with_name("plainsql")), "sql", "select pg_sleep(78)"]
    process = subprocess.Popen(command, env=environment_of(service), stderr=subprocess.PIPE, text=True)
    with service.engine() as engine:
        asked = "select count(*) from pg_stat_activity where state = 'active' and query like 'select pg_sleep(78)%'"
        while engine.execute(asked).fetchone() == (0,):
            assert process.poll() is None
            time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed.splitlines()[-1]) == (130, "Interrupted.")


def on_terminal(service: Service, *arguments: str, types: str) -> tuple[int, str]:
    """The exit code and what a command shows on a terminal on which this is typed."""
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("plainsql")), *arguments]
    process = subprocess.Popen(command, env=environment_of(service), stdin=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    os.write(ours, f"{types}\n".encode())
    _, shown = process.communicate(timeout=120)
    os.close(ours)
    return process.returncode, shown


def test_deleting_asks_for_the_name_on_a_terminal(service: Service, db: plainsql.Client) -> None:
    name = f"gone{uuid4().hex[:8]}"
    service.customers.add_database(name)
    with plainsql.Client(db.settings._replace(database=name)) as of_name:
        of_name.query("create table t (id int)")
    for arguments in (["databases", "delete", name], ["reset", name]):
        refused = run(service, *arguments)
        assert (refused.returncode, "confirm it with --yes" in refused.stderr) == (2, True)
        code, shown = on_terminal(service, *arguments, types="something else")
        assert (code, "The name doesn't match. Nothing was done." in shown) == (2, True)
    code, shown = on_terminal(service, "reset", name, types=name)
    assert (code, f"Emptied database '{name}'. Dropped: 1 tables" in shown) == (0, True), shown
    assert run(service, "databases", "delete", name, "--yes", "--for-good").returncode == 0


def test_a_key_is_revoked_by_its_name(service: Service) -> None:
    name = f"reports-{uuid4().hex[:8]}"
    secrets = [run(service, "keys", "create", name, "--scope", "read").stdout.strip() for _ in range(2)]
    several = run(service, "keys", "revoke", name, "--yes")
    assert (several.returncode, f"Several keys are named '{name}'. Give the id:\n  key_" in several.stderr) == (2, True)
    listed = [each for each in json.loads(run(service, "keys", "-o", "json").stdout) if each["name"] == name]
    assert run(service, "keys", "revoke", listed[0]["id"], "--yes").returncode == 0
    assert run(service, "keys", "revoke", name, "--yes").returncode == 0
    assert [run(service, "--key", each, "sql", "select 1").returncode for each in secrets] == [3, 3]
    gone = run(service, "keys", "revoke", name, "--yes")
    assert (gone.returncode, f"No active key is named '{name}': key_" in gone.stderr) == (1, True)


def test_a_key_is_rotated_by_its_name_again_and_again(service: Service) -> None:
    name = f"nightly-{uuid4().hex[:8]}"
    expiring = run(service, "keys", "create", name, "--scope", "read", "--expires-at", "2099-01-31T00:00:00Z")
    assert "It expires at 2099-01-31 00:00:00 UTC." in expiring.stderr
    # At first without an overlap, so that an expired key has the name, too.
    secret = ""
    for overlap, validity in (("0", "is no longer valid"), ("600", "is valid until 20"), ("600", "is valid until 20")):
        rotated = run(service, "keys", "rotate", name, "--overlap", overlap)
        assert (rotated.returncode, f", which {validity}" in rotated.stderr) == (0, True), rotated.stderr
        secret = rotated.stdout.strip()
    keys = [each for each in json.loads(run(service, "keys", "-o", "json").stdout) if each["name"] == name]
    assert [each["state"] for each in keys] == ["expired", "active", "active", "active"]
    assert run(service, "--key", secret, "sql", "select 1").returncode == 0
    # Which of them is to be revoked is for the user to say.
    several = run(service, "keys", "revoke", name, "--yes")
    old, newest = keys[1], keys[3]
    assert f"\n  {old['id']}: active, …{old['last_four']}, replaced by {newest['id']}, expires at 20" in several.stderr
    assert (several.returncode, keys[0]["id"] in several.stderr) == (2, False)
    for each in keys[1:3]:
        assert run(service, "keys", "revoke", each["id"], "--yes").returncode == 0
    assert run(service, "keys", "revoke", name, "--yes").returncode == 0
    assert run(service, "--key", secret, "sql", "select 1").returncode == 3


def test_keys_that_replace_each_other_in_a_circle_are_followed_once() -> None:
    fields: dict[str, Any] = dict.fromkeys(Key.__slots__)
    keys = {each: Key(**{**fields, "id": each, "replaces": other}) for each, other in (("a", "b"), ("b", "a"))}
    assert _successors(keys, list(keys.values())) == {"a": "b", "b": "b"}


def test_usage_and_the_audit_log_are_for_people_or_for_programs(service: Service) -> None:
    run(service, "keys", "create", "audited", "--scope", "read")
    (entry,) = json.loads(run(service, "audit", "--limit", "1", "-o", "json").stdout)
    assert (entry["action"], entry["details"]["name"]) == ("key.create", "audited")
    shown = run(service, "audit", "--limit", "1").stdout.splitlines()
    assert (shown[0].split()[:3], " UTC | " in shown[2]) == (["at", "|", "actor"], True)
    used = run(service, "usage", "--from", "2026-01-01", "--to", "2026-01-02", "-o", "csv")
    assert (used.returncode, used.stdout) == (0, "day,database,requests,rows,engine_us,bytes\n")
    assert run(service, "usage", "--from", "yesterday").returncode == 2


def test_sizes_and_times_are_readable() -> None:
    assert [readable_size(each) for each in (0, 1023, 8192, 27_262_976, 5 << 40)] == [
        "0 bytes", "1023 bytes", "8.0 kB", "26 MB", "5.0 TB",
    ]  # fmt: skip
    assert [readable_duration(each) for each in (164, 4_230, 12_500_000, 200_000_000, 7_260_000_000)] == [
        "164 µs", "4.2 ms", "12.5 s", "3 min 20 s", "2 h 1 min",
    ]  # fmt: skip
    assert readable_time("2026-11-17T15:26:16.817843Z") == "2026-11-17 15:26:16 UTC"


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        ("\\d\nselect 1;\n  \\x\n", ["\\d", "select 1", "\\x"]),
        ("select '\n\\d\n' ;", ["select '\n\\d\n'"]),
        ("select\nexit;\nEXIT", ["select\nexit", "EXIT"]),
        ("-- a\n\\d x;", ["\\d x;"]),
        ("do $a$ $A$;\nexit\n $a$", ["do $a$ $A$;\nexit\n $a$"]),
    ],
)
def test_commands_are_lines_between_statements(text: str, inputs: list[str]) -> None:
    assert all_statements(text) == inputs


def test_only_whole_transactions_begin_and_end() -> None:
    words = {"begin": "BEGIN", "START TRANSACTION": "BEGIN", "-- x\nbegin isolation level serializable": "BEGIN"}
    words |= {"end": "COMMIT", "commit work;": "COMMIT", "abort": "ROLLBACK", "rollback to savepoint a": ""}
    assert {sql: transaction_word(sql) for sql in [*words, "commit prepared 'x'"]} == {
        **words,
        "commit prepared 'x'": "",
    }


@pytest.mark.parametrize("terminal", [50], indirect=True)
def test_the_shell_on_a_terminal(terminal: Terminal, service: Service, tmp_path: Path) -> None:  # noqa: F811
    """Transactions, another database, and the editor, which is a script here."""
    name = f"other{uuid4().hex[:8]}"
    service.customers.add_database(name)

    def do(text: str, shown: str, mark: str = "") -> None:
        terminal.enter(text)
        terminal.wait_for(shown)
        terminal.wait_for_prompt(f"{name}{mark}>")

    terminal.wait_for_prompt()
    do(f"\\c {name}", "You now use database")
    do("create table t (id int);", "CREATE TABLE,")
    do("begin;", "BEGIN", mark="*")
    do("insert into t values (1), (2) returning id * 10 as ten;", "  20", mark="*")
    do("select * from nowhere;", "undefined_table", mark="!")
    do("select 1;", "transaction failed. Type ROLLBACK; to end the transaction.", mark="!")
    do("commit;", "ROLLBACK: a statement of this transaction failed")
    do("begin; insert into t values (3); commit;", "\nCOMMIT\n")
    do("select count(*) as edited from t;", "SELECT 1 row")
    terminal.enter("\\e")
    terminal.wait_for_prompt(f"{name}> select count(*) + 41 as edited from t;")
    do("", "     42")
    do("\\l", f"\n {name} ")
    do("help", "list databases")
    terminal.enter("exit")
    terminal.wait_until_ended()
