"""The command as people and scripts use it: what goes to which stream, exit codes, and how soon it answers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from plainsql.command.statements import split_statements
from plainsql.command.tables import csv_line
from server.tests.service import Service


def run(
    service: Service | None, *arguments: str, cwd: Path | None = None, input: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
    if service is not None:
        environment |= {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
        environment |= {"PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    command = [str(Path(sys.executable).with_name("plainsql")), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=cwd, input=input
    )


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("table", " n    | t  | e\n------+----+------\n 1.50 | ä, | NULL\n"),
        ("json", '[\n{"n":1.50,"t":"ä,","e":null}\n]\n'),
        ("ndjson", '{"n":1.50,"t":"ä,","e":null}\n'),
        ("csv", 'n,t,e\n1.50,"ä,",\n'),
    ],
)
def test_standard_output_is_data_alone(service: Service, form: str, expected: str) -> None:
    done = run(service, "sql", "-o", form, "select 1.50 as n, 'ä,' as t, null as e")
    assert (done.stdout, done.returncode) == (expected, 0)
    assert service.data_url in done.stderr


def test_an_error_shows_the_statement_with_a_caret_and_goes_to_standard_error(service: Service) -> None:
    done = run(service, "sql", "select 1,\n  nowhere_to_be_found")
    assert (done.stdout, done.returncode) == ("", 1)
    said = done.stderr.splitlines()[1:]
    assert said[:3] == [
        'Error: column "nowhere_to_be_found" does not exist',
        "Line 2:   nowhere_to_be_found",
        " " * 10 + "^",
    ]
    assert said[3].startswith("Code: undefined_column (42703)  Request: req_")


def test_exit_codes_tell_what_kind_of_failure_it_was(service: Service, tmp_path: Path) -> None:
    assert run(None, "sql", "select 1", cwd=tmp_path).returncode == 2
    assert run(service, "--key", "svc_k_wrong", "sql", "select 1").returncode == 3
    away = run(None, "--url", "http://127.0.0.1:1", "--key", "x", "--timeout", "0.1", "sql", "select 1")
    assert (away.returncode, "does not answer" in away.stderr) == (4, True)
    assert run(service, "nonsense").returncode == 2


def test_several_statements_are_one_transaction(service: Service) -> None:
    name = f"c_{uuid4().hex[:8]}"
    failed = run(service, "sql", f"create table {name} (id int)", "select 1 / 0")
    assert (failed.returncode, "Statement: number 2" in failed.stderr) == (1, True)
    assert run(service, "sql", f"select * from {name}").returncode == 1
    assert run(service, "sql", "-p", "5", "select $1::int + 1 as six", "-o", "ndjson").stdout == '{"six":6}\n'


def test_statements_of_a_script_run_one_after_the_other(service: Service) -> None:
    done = run(service, input="select 1 as a; -- x;\nselect ';' as b;\nselect $$;$$ as c")
    assert done.returncode == 0
    assert done.stdout.split() == ["a", "---", "1", "b", "---", ";", "c", "---", ";"]


def test_keys_databases_and_sessions_are_made_and_listed(service: Service) -> None:
    name = f"db{uuid4().hex[:8]}"
    assert run(service, "databases", "create", name).stdout.startswith("db_")
    assert name in [each["name"] for each in json.loads(run(service, "databases", "-o", "json").stdout)]
    assert run(service, "databases", "delete", name, "--for-good").returncode == 0
    secret = run(service, "keys", "create", "reports", "--scope", "read").stdout.strip()
    assert secret.startswith("svc_k_")
    token = run(service, "--key", secret, "session").stdout.strip()
    assert run(service, "--key", token, "sql", "select 1 as one", "-o", "csv").stdout == "one\n1\n"
    assert json.loads(run(service, "health").stdout)["status"] in ("ok", "degraded")
    assert json.loads(run(service, "whoami").stdout)["tier"] == "dedicated"


def test_a_login_is_tried_saved_for_its_user_alone_and_used(service: Service, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    base = [str(Path(sys.executable).with_name("plainsql")), "--ca-file", str(service.dev["ca_file"])]
    for key, code in (("svc_k_wrong", 3), (service.api_key, 0)):
        command = [*base, "login", service.data_url]
        done = subprocess.run(command, input=key, text=True, env=environment, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
    saved = tmp_path / "plainsql/login.json"
    assert saved.stat().st_mode & 0o777 == 0o600
    used = [base[0], "sql", "select 1 as one", "-o", "csv"]
    assert (
        subprocess.run(used, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        == "one\n1\n"
    )


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("select 1; select 2", ["select 1"], "select 2"),
        ("select ';' ; select e'\\';' ;", ["select ';'", "select e'\\';'"], ""),
        ('select ";" from t;', ['select ";" from t'], ""),
        ("select 1 /* ; /* ; */ ; */;", ["select 1 /* ; /* ; */ ; */"], ""),
        ("do $x$ begin ; $y$ ; end $x$;", ["do $x$ begin ; $y$ ; end $x$"], ""),
        ("select 'unclosed ;", [], "select 'unclosed ;"),
        (" ;; ", [], ""),
    ],
)
def test_a_text_is_split_where_statements_end(text: str, statements: list[str], rest: str) -> None:
    assert split_statements(text) == (statements, rest)


def test_null_and_the_empty_string_differ_in_csv() -> None:
    assert csv_line([None, "", "a", 'b"c', "d,e"]) == ',"",a,"b""c","d,e"'


@pytest.mark.skipif("PLAINSQL_TEST_COLD" not in os.environ, reason="a time, which a busy machine does not keep")
def test_it_answers_within_a_quarter_of_a_second_from_nothing(service: Service, tmp_path: Path) -> None:
    """An installed command has its bytecode compiled; so does this one after its first run."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    environment |= {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
    environment |= {"PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    command = str(Path(sys.executable).with_name("plainsql"))
    for arguments, limit_s in ((["sql", "select 1"], 0.25), (["--help"], 0.15)):
        took = []
        for _ in range(11):
            began = time.perf_counter()
            subprocess.run([command, *arguments], env=environment, capture_output=True, check=True)
            took.append(time.perf_counter() - began)
        print(f"{arguments[0]}: median {sorted(took[1:])[5] * 1000:.0f} ms, best {min(took) * 1000:.0f} ms")
        assert sorted(took[1:])[5] < limit_s
