"""The command as people and scripts use it: what goes to which stream, exit codes, and how soon it answers."""

import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pytest

from client.tests.scripted import answer, scripted
from plainsql.command.statements import renumbered, split_statements
from plainsql.command.tables import csv_line
from plainsql.control import Key
from server.tests import forks
from server.tests.service import Service


def run(
    service: Service | None, *arguments: str, cwd: Path | None = None, input: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")} | variables
    if service is not None:
        environment |= {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
        environment |= {"PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    return forks.run(arguments, environment, program=forks.CLIENT, cwd=cwd, input=input or "", timeout=600)


@pytest.mark.parametrize(
    ("output_format", "expected"),
    [
        ("table", " n    | t  | e\n------+----+------\n 1.50 | ä, | NULL\n"),
        ("json", '[\n{"n":1.50,"t":"ä,","e":null}\n]\n'),
        ("ndjson", '{"n":1.50,"t":"ä,","e":null}\n'),
        ("csv", 'n,t,e\n1.50,"ä,",\n'),
    ],
)
def test_standard_output_is_data_alone(service: Service, output_format: str, expected: str) -> None:
    done = run(service, "sql", "-o", output_format, "select 1.50 as n, 'ä,' as t, null as e")
    assert (done.stdout, done.returncode) == (expected, 0)
    assert service.data_url in done.stderr


def test_an_error_shows_the_statement_with_a_caret_and_goes_to_standard_error(service: Service) -> None:
    done = run(service, "sql", "select 1,\n  nowhere_to_be_found")
    assert (done.stdout, done.returncode) == ("", 1)
    lines = done.stderr.splitlines()[1:]
    assert lines[:3] == [
        'Error: column "nowhere_to_be_found" does not exist',
        "Line 2:   nowhere_to_be_found",
        " " * 10 + "^",
    ]
    assert lines[3].startswith("Code: undefined_column (42703)  Request: req_")


def test_a_null_differs_from_the_text_null(service: Service) -> None:
    done = run(service, "sql", "select null as a, 'NULL' as b")
    assert done.stdout.splitlines()[-1].split() == ["NULL", "|", "'NULL'"]


def test_set_alone_and_other_placeholders_get_a_hint(service: Service) -> None:
    alone = run(service, "sql", "set search_path = 'shop'")
    assert (alone.returncode, "WARNING:  SET has no effect on other requests" in alone.stderr) == (0, True)
    placeholder = run(service, "sql", "create table never as select %s as a", "-p", "1")
    assert (placeholder.returncode, "Hint: Write parameters as $1, $2" in placeholder.stderr) == (1, True)


def test_exit_codes_distinguish_kinds_of_failure(service: Service, tmp_path: Path) -> None:
    assert run(None, "sql", "select 1", cwd=tmp_path).returncode == 2
    assert run(service, "--key", "svc_k_wrong", "sql", "select 1").returncode == 3
    refused = run(None, "--url", "http://127.0.0.1:1", "--key", "x", "--timeout", "0.1", "sql", "select 1")
    assert (refused.returncode, "Can't connect to" in refused.stderr) == (4, True)
    assert run(service, "nonsense").returncode == 2
    untrusted = run(None, "--url", service.data_url, "--key", service.api_key, "sql", "select 1")
    assert (untrusted.returncode, "--ca-file or PLAINSQL_CA_FILE" in untrusted.stderr) == (2, True)
    exposed = run(None, "--url", "http://db.example", "--key", "x", "sql", "select 1")
    assert (exposed.returncode, "doesn't use TLS" in exposed.stderr) == (2, True)
    address = service.data_url.replace("https:", "http:").replace("localhost", "127.0.0.1")
    plain = run(None, "--url", address, "--key", "x", "sql", "select 1")
    assert (plain.returncode, "Use https:// in the URL." in plain.stderr) == (1, True)
    # `dev` left this folder's key, and is stopped.
    (tmp_path / ".plainsql").mkdir()
    (tmp_path / ".plainsql/api_key").touch()
    stopped = run(None, "sql", "select 1", cwd=tmp_path)
    assert (stopped.returncode, "plainsql-server dev" in stopped.stderr) == (4, True)
    # What doesn't exist is no matter of the credential.
    missing = (
        "databases delete nowhere --yes",
        "keys revoke nowhere --yes",
        "reset nowhere --yes",
        "-d nowhere tables",
    )
    for arguments in missing:
        done = run(service, *arguments.split())
        assert (done.returncode, "nowhere" in done.stderr.partition("Error: ")[2]) == (1, True), done.stderr
    # Without a terminal, nothing is deleted unless --yes says so.
    assert run(service, "databases", "delete", "main").returncode == 2


def subcommands(*before: str) -> list[tuple[str, ...]]:
    """All subcommands that the help lists, and theirs."""
    text = run(None, *before, "--help").stdout
    listed = re.findall(r"^    (\w+)", text.partition("subcommands:\n")[2].partition("\n\n")[0], re.MULTILINE)
    found = [(*before, name) for name in listed]
    return found + [each for name in found for each in subcommands(*name)]


def test_every_subcommand_has_help_that_says_what_it_does() -> None:
    found = subcommands()
    assert {("sql",), ("keys", "list"), ("databases", "delete")} <= set(found)
    for name in found:
        done = run(None, *name, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        usage, described, *_ = done.stdout.split("\n\n")
        assert usage.startswith(f"usage: plainsql {' '.join(name)} [-h]")
        assert re.fullmatch(r"[A-Z].*\.", described)
        assert max(map(len, done.stdout.splitlines())) < 80
        # In double quotes, a shell would replace it.
        assert not re.search(r'"[^"\n]*\$', done.stdout)


def test_what_newcomers_type_is_understood_or_explained(service: Service) -> None:
    assert run(None, "help").stdout == run(None, "--help").stdout
    assert run(None, "keys", "help").stdout == run(None, "keys", "--help").stdout
    sql = run(service, "select 1")
    assert (sql.returncode, "to run SQL, type plainsql sql 'select 1'" in sql.stderr) == (2, True)
    statement = """select '$HOME', "a" from `b`"""
    advice = run(service, statement).stderr.rpartition("type ")[2]
    assert shlex.split(advice) == ["plainsql", "sql", statement]
    assert "did you mean databases?" in run(service, "database").stderr
    for noun in ("keys", "databases"):
        listed, implied = (run(service, noun, *verb, "-o", "csv").stdout.splitlines() for verb in (["list"], []))
        assert (listed[0], len(listed) > 1) == (implied[0], True)
    assert run(service, "sql", "-f", "-", "-o", "csv", input="select 1 as one;").stdout == "one\n1\n"
    for arguments in (
        ["usage", "--from", "monday"],
        ["keys", "create", "x", "--scope", "read", "--expires-at", "soon"],
    ):
        done = run(service, *arguments)
        assert (done.returncode, f"{arguments[-1]!r} isn't a" in done.stderr) == (2, True)


def test_several_statements_are_one_transaction(service: Service) -> None:
    name = f"c_{uuid4().hex[:8]}"
    failed = run(service, "sql", f"create table {name} (id int)", "select 1 / 0")
    assert (failed.returncode, "Statement 2: select 1 / 0" in failed.stderr) == (1, True)
    assert run(service, "sql", f"select * from {name}").returncode == 1
    assert run(service, "sql", "-p", "5", "select $1::int + 1 as six", "-o", "ndjson").stdout == '{"six":6}\n'


def test_statements_share_the_parameters(service: Service, tmp_path: Path) -> None:
    name = f"c_{uuid4().hex[:8]}"
    script = f"""
        create table {name} (day date, note text); -- $3
        insert into {name} values ($1, '$1;'), ($1, $2);
        select note from {name} where note = $2 or note = '$2';
        select count(*) from {name} where day = $1;
        drop table {name};
    """
    (tmp_path / "close.sql").write_text(script)
    for more in ([], ["--no-transaction"]):
        done = run(service, "sql", "-f", "close.sql", "-o", "csv", "-p", "2026-03-10", "-p", "x", *more, cwd=tmp_path)
        assert (done.returncode, done.stdout.split()) == (0, ["note", "x", "count", "2"]), done.stderr
    needless = run(service, "sql", "-f", "close.sql", "-p", "2026-03-10", "-p", "x", "-p", "y", cwd=tmp_path)
    assert (needless.returncode, "No statement uses $3, but -p gives it the value 'y'." in needless.stderr) == (2, True)
    missing = run(service, "sql", "-f", "close.sql", "-p", "2026-03-10", cwd=tmp_path)
    assert (missing.returncode, "$2 has no value. Give the values of $1, $2, … with -p" in missing.stderr) == (2, True)


def test_parameters_of_call_and_of_create_table_as(service: Service) -> None:
    name = f"c_{uuid4().hex[:8]}"
    statements = [
        f"create table {name} as select $2::int as n",
        f"create procedure {name}_p(int) language sql as 'insert into {name} values ($1)'",
        f"call {name}_p($1::int)",
        f"select n from {name} order by n",
    ]
    done = run(service, "sql", *statements, "-p", "7", "-p", "8", "-o", "csv")
    assert (done.returncode, done.stdout.split()) == (0, ["n", "7", "8"]), done.stderr


def test_a_parameter_without_a_value_leads_to_the_option(service: Service) -> None:
    for arguments in (["select $1::text"], ["select $1::text", "North"], ["select $1::text", "-o", "csv"]):
        done = run(service, "sql", *arguments)
        hint = "Hint: Give the values of $1, $2, … with -p, such as -p 'North' -p 7. Other arguments are statements."
        assert (done.returncode, hint in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    ("sql", "sent", "values"),
    [
        ("select $2, $2", "select $1, $1", ["b"]),
        ("select $1, $3 -- $2", "select $1, $2 -- $2", ["a", "c"]),
        ("select a$2, '$2', $$ $2 $$, $x$ $2 $x$, /* /* */ $2 */ $3", None, ["c"]),
        ("select $1, $02", "select $1, $02", ["a", "b"]),
        ("select $02", "select $1", ["b"]),
        ("select $ä$costs $2$ä$, x$e'\\', a$b$, '$2', $3", None, ["c"]),
        ("select a like'\\' and b = '$2', $3", None, ["c"]),
        ("/* $1 */ create Or replace\nfunction f(int) returns int return $2", None, []),
        ("call p($2)", "call p($1)", ["b"]),
    ],
)
def test_a_statement_gets_the_parameters_that_it_uses(sql: str, sent: str | None, values: list[str]) -> None:
    assert renumbered(sql, ["a", "b", "c"]) == (sent or re.sub(r"\$3$", "$1", sql), values)


def test_statements_of_a_script_run_one_after_the_other(service: Service) -> None:
    done = run(service, input="select 1 as a; -- x;\nselect ';' as b;\nselect $$;$$ as c")
    assert done.returncode == 0
    assert done.stdout.split() == ["a", "---", "1", "b", "---", ";", "c", "---", ";"]


def test_keys_databases_and_sessions_are_made_and_listed(service: Service) -> None:
    name = f"db{uuid4().hex[:8]}"
    assert run(service, "databases", "create", name).stdout.startswith("db_")
    assert name in [each["name"] for each in json.loads(run(service, "databases", "-o", "json").stdout)]
    assert re.search(
        rf"^ {name} +\| ready +\| false +\| +[\d.]+ [kM]B \| ", run(service, "databases").stdout, re.MULTILINE
    )
    assert run(service, "databases", "delete", name, "--for-good", "--yes").returncode == 0
    secret = run(service, "keys", "create", "reports", "--scope", "read").stdout.strip()
    assert secret.startswith("svc_k_")
    token = run(service, "--key", secret, "session").stdout.strip()
    short = run(service, "--key", secret, "session", "--expires-in", "900").stdout.strip()
    for seconds in ("30", "86401", "an hour"):
        refused = run(service, "--key", secret, "session", "--expires-in", seconds)
        message = f"argument --expires-in: '{seconds}' isn't a number from 60 to 86400"
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    ends_at = datetime.fromisoformat(json.loads(run(service, "--key", short, "whoami").stdout)["expires_at"])
    assert ends_at - datetime.now(UTC) < timedelta(minutes=15)
    assert run(service, "--key", token, "sql", "select 1 as one", "-o", "csv").stdout == "one\n1\n"
    assert json.loads(run(service, "health").stdout)["status"] in ("ok", "degraded")
    assert json.loads(run(service, "whoami").stdout)["tier"] == "dedicated"


def test_keys_and_sessions_are_bound_as_the_command_says(service: Service) -> None:
    name = f"db{uuid4().hex[:8]}"
    service.customers.add_database(name)
    for option in ("--bound-to", "--database", "-d"):
        for arguments in (["keys", "create", "bound", "--scope", "read"], ["session", "--scope", "read"]):
            made = run(service, *arguments, option, name)
            assert f"bound to the database '{name}'" in made.stderr, arguments
            key = made.stdout.strip()
            shown = run(service, "--key", key, "sql", "select 1")
            assert shown.returncode == 0, shown.stderr
            refused = run(service, "--key", key, "-d", "main", "sql", "select 1")
            kind = "key" if arguments[0] == "keys" else "session"
            assert (refused.returncode, f"This {kind} is bound to the database '{name}'." in refused.stderr) == (
                3,
                True,
            )
            caller = json.loads(run(service, "--key", key, "whoami").stdout)
            assert (caller["kind"], caller["scopes"], caller["bound_to"]) == (kind, ["read"], name)
            assert (caller["expires_at"] is None) == (kind == "key")
            # A read key cannot write, and that is a matter of the key.
            written = run(service, "--key", key, "sql", "create table refused (id int)")
            assert (written.returncode, "scope read" in written.stderr) == (3, True)
    free = run(service, "keys", "create", "free", "--scope", "read")
    assert ("for all databases" in free.stderr, " database main" in free.stderr) == (True, False)
    for command in (["keys", "create", "x"], ["session"]):
        bound = run(service, *command, "--scope", "write", "--scope", "admin", "--bound-to", name)
        assert (bound.returncode, f"can only reset '{name}'" in bound.stderr) == (0, True)
        reset = run(service, "--key", bound.stdout.strip(), "reset", name, "--yes")
        assert (reset.returncode, "Emptied" in reset.stderr) == (0, True)
    both = run(service, "keys", "create", "x", "--scope", "read", "--bound-to", name, "--database", "main")
    assert both.returncode == 2


def test_the_key_s_source_and_database_are_shown(service: Service, tmp_path: Path) -> None:
    """In the folder of a development service, with a key from the environment."""
    name = f"db{uuid4().hex[:8]}"
    service.customers.add_database(name)
    key = run(service, "keys", "create", "guestbook", "--scope", "read", "--bound-to", name).stdout.strip()
    (tmp_path / ".plainsql").mkdir()
    (tmp_path / ".plainsql/api_key").write_text(service.api_key)
    described = {**service.dev, "api_key_file": str(tmp_path / ".plainsql/api_key")}
    (tmp_path / ".plainsql/dev.json").write_text(json.dumps(described))
    own = run(None, "sql", "select 1", cwd=tmp_path)
    assert own.stderr.startswith(f"→ {service.data_url}, default database (from .plainsql/dev.json)\n")
    for arguments, database in ((["whoami"], ""), (["sql", "select 1"], ", default database of the key")):
        done = run(None, *arguments, cwd=tmp_path, PLAINSQL_KEY=key)
        where = f"→ {service.data_url}{database} (from .plainsql/dev.json, key from PLAINSQL_KEY)\n"
        assert (done.returncode, done.stderr[: len(where)]) == (0, where), done.stderr
        if database == "":
            assert json.loads(done.stdout)["database"] == name
    for arguments, source in ((["--url", service.data_url], "the arguments"), ([], "PLAINSQL_URL")):
        done = run(None, *arguments, "tables", cwd=tmp_path, PLAINSQL_URL=service.data_url)
        assert f", default database (from {source}, key from .plainsql/dev.json)\n" in done.stderr
    assert f"→ {service.data_url}, default database of the key (from PLAINSQL_URL)\n" in run(service, "tables").stderr
    none = run(None, "login", service.data_url, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path))
    assert (none.returncode, "No key given." in none.stderr, (tmp_path / "plainsql").exists()) == (2, True, False)
    login = run(None, "login", service.data_url, cwd=tmp_path, PLAINSQL_KEY=key, XDG_CONFIG_HOME=str(tmp_path))
    used = rf"with the key key_\w+ \(read, bound to the database '{name}'\) of the organization '"
    assert re.search(used, login.stderr), login.stderr


def test_a_login_is_verified_saved_privately_and_used(service: Service, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("output_format", ["table", "json", "csv", "ndjson"])
def test_read_only_requests_cannot_write_in_any_form(service: Service, output_format: str) -> None:
    name = f"s_{uuid4().hex[:8]}"
    service.query(f"create sequence {name}")
    done = run(service, "sql", "--read-only", "-o", output_format, f"select nextval('{name}')")
    assert (done.returncode, "read_only_sql_transaction" in done.stderr) == (1, True)
    assert service.value(f"select is_called from {name}") is False
    service.query(f"drop sequence {name}")


@pytest.mark.parametrize(
    "value",
    [
        "interval '1 mon 2 days 03:04:05.678901'", "'\\x00ff'::bytea", "'2026-01-02T03:04:05.000006Z'::timestamptz",
        "12345678901234567890.10::numeric", "'NaN'::float8", "1e20::float8", "array[[1, 2], [3, null]]",
        '\'{"a": 1.10}\'::jsonb', "'-infinity'::date", "'dd0ee244-fa0c-4a9d-8110-021df457eaf3'::uuid",
    ],
)  # fmt: skip
def test_a_value_looks_the_same_in_every_output_format(service: Service, value: str) -> None:
    streamed = run(service, "sql", "-o", "ndjson", f"select {value} as it").stdout
    together = run(service, "sql", "-o", "ndjson", f"select {value} as it", "select 1 as one").stdout.splitlines()[0]
    assert json.loads(together, parse_float=Decimal) == json.loads(streamed, parse_float=Decimal)
    assert together[:6] == streamed[:6] == '{"it":'
    shown = run(service, "sql", f"select {value} as it").stdout.splitlines()[2].strip()
    assert (
        shown == json.loads(streamed)["it"] if '"it":"' in streamed else json.loads(shown) == json.loads(streamed)["it"]
    )


def test_a_value_cannot_command_the_terminal(service: Service) -> None:
    shown = run(service, "sql", "select E'\\x1b[2J\\x07' || chr(155) || '1mred' as it, E'a\\tb\\nc' as lines")
    assert not set("\x1b\x07\x9b\t") & set(shown.stdout)
    assert "\\x1b[2J\\x07" in shown.stdout
    assert "a⇥b⏎c" in shown.stdout
    failed = run(service, "sql", "do $$ begin raise exception E'\\x1b[2J'; end $$")
    assert (failed.returncode, "\x1b" in failed.stderr) == (1, False)
    made = {**dict.fromkeys(Key.__slots__), "id": "key_\x1b[2J", "scopes": ["read"], "secret": "svc_k_x"}
    with scripted(answer(201, {"success": True, "key": made})) as (url, _):
        command = ["--url", url, "--key", "svc_k_a", "keys", "create", "n", "--scope", "read"]
        done = run(None, *command, PLAINSQL_CONTROL_URL=url)
    assert (done.returncode, "Created key_\\x1b[2J, for all databases." in done.stderr) == (0, True), done.stderr


def test_settings_may_follow_a_subcommand(service: Service) -> None:
    before, behind = (
        run(None, "--key", "x", "sql", "select 1"),
        run(None, "sql", "select 1", "--key", "x", "--url", "nowhere"),
    )
    assert "No service URL" in before.stderr
    assert "Invalid URL 'nowhere'" in behind.stderr
    assert run(service, "keys", "create", "--help").stdout.startswith("usage: plainsql keys create ")


def test_a_closed_output_pipe_is_not_an_error(service: Service) -> None:
    command = f"{Path(sys.executable).with_name('plainsql')} sql -o csv 'select generate_series(1, 1000000)' | head -2"
    environment = {**os.environ, "PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
    environment |= {"PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("generate_series\n1\n", 0), done.stderr
    assert "Exception" not in done.stderr


def test_a_script_s_failure_has_the_exit_code_of_its_kind(service: Service) -> None:
    assert run(service, input="select 1; select * from nowhere; select 2").returncode == 1
    assert run(service, "--key", "svc_k_wrong", input="select 1").returncode == 3
    refused = run(None, "--url", "http://127.0.0.1:1", "--key", "x", "--timeout", "0.5", input="select 1")
    assert refused.returncode == 4
    assert "Can't connect to http://127.0.0.1:1: Connection refused. Retrying for up to 1 s." in refused.stderr


def test_a_time_limit_applies_to_streamed_formats_too(service: Service) -> None:
    done = run(service, "--timeout", "0.3", "sql", "-o", "csv", "select pg_sleep(30)")
    assert (done.returncode, "statement_timeout" in done.stderr) == (1, True)


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


def test_unneeded_modules_are_not_imported(service: Service) -> None:
    """What takes a while to import, and neither `--help` nor a statement and its answer need."""
    program = "import sys; from plainsql.command import main; sys.stderr = sys.stdout\n"
    program += "try: main(sys.argv[1:])\nfinally: print('modules:', *sys.modules)"
    environment = {**os.environ, "PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
    environment |= {"PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    for arguments, slow in (
        (["--help"], {"typing", "ssl", "json", "h11", "dataclasses", "shutil", "plainsql.client"}),
        (["sql", "select 1"], {"asyncio", "pathlib", "urllib.parse", "datetime", "shutil", "uuid", "secrets", "email",
                               "encodings.idna", "prompt_toolkit", "concurrent.futures", "plainsql.control"}),
    ):  # fmt: skip
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert set(done.stdout.rpartition("modules:")[2].split()) & slow == set(), arguments


@pytest.mark.timing
def test_the_command_costs_little_more_than_starting_python(service: Service, tmp_path: Path) -> None:
    """Processor time, beside that of programs that do nothing but import. An installed command has its bytecode
    compiled; so does this one after its first run. With PLAINSQL_TEST_COLD=1 also the time on the clock, which a busy
    machine does not keep."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    environment |= {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
    environment |= {"PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    command = str(Path(sys.executable).with_name("plainsql"))
    programs = {
        "nothing": [sys.executable, "-c", "pass"], "http": [sys.executable, "-c", "import ssl, http.client"],
        "help": [command, "--help"], "sql": [command, "sql", "select 1"],
    }  # fmt: skip
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(6):
        for name, program in programs.items():
            taken[name].append(_time_of(program, environment))
    cpu_s = {name: min(cpu for cpu, _ in times[1:]) for name, times in taken.items()}
    wall_s = {name: statistics.median(wall for _, wall in times[1:]) for name, times in taken.items()}
    print("processor time, best, in ms:", {name: round(each * 1000) for name, each in cpu_s.items()})
    print("on the clock, median, in ms:", {name: round(each * 1000) for name, each in wall_s.items()})
    # Measured: 2.4 times as much, and with one of the large modules more than 4 times.
    assert cpu_s["help"] < 4 * cpu_s["nothing"]
    assert cpu_s["sql"] < 3 * cpu_s["http"]
    if "PLAINSQL_TEST_COLD" in os.environ:
        assert (wall_s["sql"] < 0.25, wall_s["help"] < 0.15) == (True, True)


def _time_of(program: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """The processor time of a program and its time on the clock, in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(program, env=environment, capture_output=True, check=True)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s
