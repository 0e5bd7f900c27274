"""`plainsql-server setup`: what it writes. That it works is shown on a bare machine, in `server/tests/install`."""

import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.cli.setup import machine as command
from plainsql_server.core.environment_file import parse_environment_file
from plainsql_server.directory.sealing.keyring import new_key
from plainsql_server.operations.setup.directory_files import directory_texts
from plainsql_server.operations.setup.environment import environment_texts
from plainsql_server.operations.setup.machine import Machine
from plainsql_server.operations.setup.steps import steps_of
from plainsql_server.settings import read_settings

pytestmark = pytest.mark.unit

_MACHINE = Machine("sql.example", "/opt/plainsql/bin/plainsql-server")


def test_the_environment_files_are_valid_and_contain_no_secret() -> None:
    texts = environment_texts(_MACHINE)
    for name in ("data", "control"):
        variables = parse_environment_file(texts[f"{name}.env"])
        settings = read_settings({**variables, "PLAINSQL_SECRETS_KEYS": new_key(), "PLAINSQL_SECRETS_KEYS_FILE": ""})
        assert settings.refuses_unsealed_secrets
        assert settings.tls_key_file == f"/etc/plainsql/{name}/server.key"
        assert f"user=plainsql_{name} sslmode=verify-full" in settings.directory_dsn
        assert variables["PGSSLKEY"] == f"/etc/plainsql/{name}/client.key"
    for name in ("backup", "owner"):
        read_settings(parse_environment_file(texts[f"{name}.env"]))
    assert [name for name, text in texts.items() if "password" in text] == []


def test_the_operators_file_is_for_a_shell() -> None:
    lines = [line for line in environment_texts(_MACHINE)["operator.env"].splitlines() if not line.startswith("#")]
    words = [shlex.split(line) for line in lines]
    assert {each[0] for each in words} == {"export"}
    variables = dict(each[1].split("=", 1) for each in words)
    assert variables["PATH"] == "/opt/plainsql/bin:$PATH"
    assert "user=plainsql_operator" in variables["PLAINSQL_DIRECTORY_DSN"]
    assert variables["PLAINSQL_SECRETS_KEYS_FILE"] == "/etc/plainsql/secrets.keys"


def test_every_login_to_the_directory_needs_a_certificate_or_a_system_user() -> None:
    rules = [line.split() for line in directory_texts(_MACHINE)["pg_hba.conf"].splitlines() if line[0] != "#"]
    assert rules
    for rule in rules:
        assert (rule[0], rule[-1].partition("=")[0] if "map=" in rule[-1] else rule[-1]) in {
            ("local", "peer"), ("local", "map"), ("hostssl", "cert"), ("hostssl", "map"),
        }  # fmt: skip
    # The planes' user must not be an operator.
    assert "plainsql plainsql_operator" not in directory_texts(_MACHINE)["pg_ident.conf"]


def test_steps_are_shown_as_commands_and_a_dry_run_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(
        "sql.example", _MACHINE.program, config=tmp_path / "plainsql", clusters=tmp_path / "postgresql",
        units=tmp_path / "systemd",
    )  # fmt: skip
    # Neither PostgreSQL nor systemd is asked here.
    steps = [step for step in steps_of(machine) if "createuser" not in step.shown and "createdb" not in step.shown]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(command, "find_machine", lambda _host, _program: machine)
    monkeypatch.setattr(command, "steps_of", lambda _machine: iter(steps))
    result = CliRunner().invoke(main, ["setup", "sql.example", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert f"+ /opt/plainsql/bin/plainsql-server pki init {tmp_path}/plainsql/pki\n" in result.output
    assert f"+ write {tmp_path}/plainsql/data.env\n" in result.output
    assert "Dry run: nothing was changed." in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    machine = Machine("sql.example", _MACHINE.program, config=tmp_path)
    files = {step.shown: step for step in steps_of(machine) if step.shown.startswith(f"write {tmp_path}")}
    assert len(files) == len(environment_texts(machine))
    (tmp_path / "data.env").write_text("mine")
    for step in files.values():
        if not step.is_done():
            step.run()
    assert (tmp_path / "data.env").read_text() == "mine"
    assert (tmp_path / "control.env").stat().st_mode & 0o777 == 0o600
    assert all(step.is_done() for step in files.values())


def test_only_root_can_prepare_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(main, ["setup", "sql.example"])
    assert result.exit_code == 1
    assert "Run this as root" in result.output
