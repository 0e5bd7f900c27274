"""`plainsql-server`, run as a process against a real directory and cell."""

import importlib
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from plainsql_server import VERSION
from plainsql_server.cli import main
from plainsql_server.core.credential import is_well_formed
from plainsql_server.extension_modules import COMPILED_TEXT
from plainsql_server.settings import describe_settings
from server.tests import forks
from server.tests.postgres import SUPERUSER, Postgres

Run = Callable[..., subprocess.CompletedProcess[str]]
_run_before: set[str] = set()


def _run(*arguments: str, dsn: str | None) -> subprocess.CompletedProcess[str]:
    return forks.run(arguments, _environment(dsn), timeout=60)


def _run_anew(*arguments: str, dsn: str | None) -> subprocess.CompletedProcess[str]:
    """As operators do: in a process that has imported nothing before. A command's second call is a fork."""
    if arguments[0] in _run_before:
        return _run(*arguments, dsn=dsn)
    _run_before.add(arguments[0])
    environment = _environment(dsn) | {"PYTHONPATH": ":".join(part for part in sys.path if part)}
    command = [sys.executable, "-m", "plainsql_server", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def _environment(dsn: str | None) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin"} | ({"PLAINSQL_DIRECTORY_DSN": dsn} if dsn else {})


def _runner(dsn: str, how: Run = _run) -> Run:
    def run(*arguments: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
        ended = how(*arguments, dsn=dsn)
        assert ended.returncode == exit_code, ended.stderr
        assert "Traceback" not in ended.stderr
        return ended

    return run


@pytest.fixture
def sighup_restored() -> Iterator[None]:
    """The command changes it in this process. Programs that later tests start would have it ignored, too."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def run(empty_dsn: str) -> Run:
    """Runs the command on a directory without tables."""
    return _runner(empty_dsn)


@pytest.fixture
def migrated(dsn: str) -> Run:
    return _runner(dsn)


def test_an_operator_gets_from_nothing_to_a_revoked_key(empty_dsn: str, postgres: Postgres) -> None:
    run = _runner(empty_dsn, _run_anew)
    run("migrate")
    run("migrate")
    organization_id = run("org", "create", "Acme", "--tier", "standard").stdout.strip()
    assert organization_id.startswith("org_")
    cell = run("cell", "add", "local", "--conninfo", postgres.conninfo, "--admin-role", SUPERUSER).stdout.strip()
    again = run("cell", "add", "local", "--if-missing", "--conninfo", postgres.conninfo, "--admin-role", SUPERUSER)
    assert again.stdout.strip() == cell
    database = run("database", "create", "--org", "Acme", "main").stdout.strip()
    key = run(
        "key", "create", "--org", organization_id, "--name", "app", "--scope", "read", "--scope", "write",
        "--database", "main", "--expires-at", "2999-01-31T00:00:00Z",
    )  # fmt: skip
    secret = key.stdout.strip()
    assert is_well_formed(secret)
    assert secret not in key.stderr

    (listed,) = json.loads(run("key", "list", "--org", "Acme", "--json").stdout)
    assert (listed["database_name"], sorted(listed["scopes"])) == ("main", ["read", "write"])
    run("key", "revoke", listed["id"])
    (revoked,) = json.loads(run("key", "list", "--org", "Acme", "--json").stdout)
    assert revoked["revoked_at"] is not None
    assert [each["id"] for each in json.loads(run("cell", "list", "--json").stdout)] == [cell]
    (made,) = json.loads(run("database", "list", "--org", "Acme", "--json").stdout)
    assert (made["id"], made["cell_name"], "record_secret" in made) == (database, "local", False)
    for arguments in (["key", "list", "--org", "Acme"], ["cell", "list"], ["org", "list"]):
        assert secret not in run(*arguments).stdout


def test_a_list_is_aligned_for_people(migrated: Run) -> None:
    migrated("org", "create", "A")
    migrated("org", "create", "A much longer name", "--tier", "dedicated")
    heading, first, second = migrated("org", "list").stdout.splitlines()
    assert heading.index("TIER") == first.index("free") == second.index("dedicated")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["org", "create", "org_x"], "can't start with org_"),
        (["key", "list", "--org", "nobody"], "no organization 'nobody'"),
        (["key", "revoke", "key_x"], "no key 'key_x'"),
        (["cell", "add", "far", "--conninfo", "host=/nowhere", "--admin-role", "x"], "/nowhere"),
        (["cell", "add", "far", "--conninfo", "host=x user=y", "--admin-role", "x"], "must not contain user"),
        (["cell", "add", "far", "--conninfo", "host=x sslpassword=y", "--admin-role", "x"], "contain sslpassword"),
        (["cell", "set", "far", "--conninfo", "host=x"], "no cell 'far'"),
    ],
)
def test_a_failure_is_one_line_on_stderr_and_exit_code_1(migrated: Run, arguments: list[str], words: str) -> None:
    ended = migrated(*arguments, exit_code=1)
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert words in ended.stderr


def test_a_directory_without_tables_is_reported_with_its_fix(run: Run) -> None:
    assert "plainsql-server migrate" in run("org", "list", exit_code=1).stderr


@pytest.mark.parametrize("arguments", [["migrate"], ["org", "list"]])
def test_an_unavailable_directory_is_reported_in_one_line(arguments: list[str]) -> None:
    ended = _run(*arguments, dsn="host=/nowhere dbname=directory")
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "/nowhere" in ended.stderr


@pytest.mark.parametrize("arguments", [["migrate"], ["org", "list"], ["data"], ["control"]])
def test_a_missing_setting_is_one_line_that_names_it(arguments: list[str]) -> None:
    ended = _run(*arguments, dsn=None)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "PLAINSQL_DIRECTORY_DSN" in ended.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["org", "create"], ["org", "create", "A", "--tier", "platinum"]])
def test_a_wrong_command_line_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    run(*arguments, exit_code=2)


@pytest.mark.usefixtures("sighup_restored")
@pytest.mark.parametrize(
    "command",
    [
        [], ["dev"], ["data"], ["control"], ["migrate"], ["settings"],
        ["doctor"], ["status"], ["top"], ["backup"], ["restore"], ["upgrade"],
        ["org"], ["org", "create"], ["org", "list"],
        ["key"], ["key", "create"], ["key", "list"], ["key", "revoke"],
        ["cell"], ["cell", "add"], ["cell", "set"], ["cell", "list"], ["cell", "extensions"],
        ["database"], ["database", "create"], ["database", "list"], ["database", "suspend"], ["database", "resume"],
    ],
)  # fmt: skip
def test_every_command_has_help_and_needs_no_settings_for_it(command: list[str]) -> None:
    ended = CliRunner().invoke(main, [*command, "--help"], env={"PLAINSQL_DIRECTORY_DSN": None})
    assert ended.exit_code == 0
    assert ended.stdout.startswith("Usage:")
    assert len(ended.stdout.splitlines()) > 5


@pytest.mark.timing
def test_the_help_names_every_command_and_exit_code_and_is_quick() -> None:
    shown = _run("--help", dsn=None).stdout
    for word in ("dev", "data", "control", "migrate", "org", "key", "cell", "database", "settings", "Exit codes"):
        assert word in shown
    # Importing the driver alone would double this. Other tests may keep the machine busy, so it is the processor's
    # time that counts, and beside that of a Python that imports click alone.
    bare_s = min(_processor_s("-c", "import click") for _ in range(5))
    assert min(_processor_s("-m", "plainsql_server", "--help") for _ in range(5)) < 2.5 * bare_s


def _processor_s(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_version_is_the_packages() -> None:
    assert _run("--version", dsn=None).stdout == f"plainsql-server {VERSION} ({COMPILED_TEXT})\n"


def test_settings_lists_every_setting() -> None:
    listed = _run("settings", dsn=None).stdout
    assert all(variable in listed for variable, _, _ in describe_settings())
    assert len(json.loads(_run("settings", "--json", dsn=None).stdout)) == len(describe_settings())


@pytest.mark.usefixtures("sighup_restored")
@pytest.mark.parametrize("plane", ["data", "control"])
def test_a_plane_that_has_not_started_is_not_ended_by_sighup(monkeypatch: pytest.MonkeyPatch, plane: str) -> None:
    handlers = []

    def note(_: str) -> None:
        handlers.append(signal.getsignal(signal.SIGHUP))
        raise ImportError

    monkeypatch.setattr(importlib, "import_module", note)
    CliRunner().invoke(main, [plane])
    # Its modules take a second to import.
    assert handlers == [signal.SIG_IGN]
