"""`plainsql-server setup`: what it writes. That it works is shown on a bare machine, in `server/tests/install`."""

import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.cli.setup import machine as command
from plainsql_server.core.environment_file import parse_environment_file
from plainsql_server.directory.sealing.keyring import new_key
from plainsql_server.operations.setup.archives import archive_steps
from plainsql_server.operations.setup.checks import check_archive, check_program
from plainsql_server.operations.setup.directory_files import directory_texts
from plainsql_server.operations.setup.environment import environment_texts
from plainsql_server.operations.setup.machine import Machine, SetupError, find_machine
from plainsql_server.operations.setup.running import run
from plainsql_server.operations.setup.step import SetupStep
from plainsql_server.operations.setup.steps import cell_options, steps_of
from plainsql_server.settings import read_settings

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


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with nothing on it, in a folder."""
    return Machine(
        "sql.example", _MACHINE.program, config=tmp_path / "plainsql", clusters=tmp_path / "postgresql",
        units=tmp_path / "systemd",
    )  # fmt: skip


@pytest.fixture
def as_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command finds that machine, and believes that root runs it. It sets the umask."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(command, "find_machine", lambda _host, _program: machine)
    monkeypatch.setattr(command, "check_program", lambda _machine: None)
    monkeypatch.setattr(command, "check_cell_cluster", lambda _machine: None)
    before = os.umask(0o077)
    yield
    os.umask(before)


def step_of(machine: Machine, words: str) -> SetupStep:
    """The first step that is shown with these words."""
    return next(step for step in steps_of(machine) if words in step.shown)


@pytest.mark.usefixtures("as_root")
def test_steps_are_shown_as_commands_and_a_dry_run_does_nothing(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither PostgreSQL nor systemd is asked here.
    asking = ("createuser", "createdb", "pg_ctlcluster")
    steps = [step for step in steps_of(machine) if not any(word in step.shown for word in asking)]
    monkeypatch.setattr(command, "steps_of", lambda _machine: iter(steps))
    result = CliRunner().invoke(main, ["setup", "sql.example", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert f"+ /opt/plainsql/bin/plainsql-server pki init {tmp_path}/plainsql/pki\n" in result.output
    assert "+ env LC_ALL=C.UTF-8 pg_createcluster 15 directory --encoding UTF8\n" in result.output
    assert f"+ write {tmp_path}/plainsql/data.env\n" in result.output
    assert "Dry run: nothing was changed." in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("as_root")
def test_what_commands_say_is_shown_and_the_umask_does_not_matter(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    warns = ["sh", "-c", "echo not for you; echo PostgreSQL will not start >&2"]
    step = SetupStep("warn", lambda: False, lambda: run(warns))
    folder = step_of(machine, "install -d")
    repair = SetupStep("repair", lambda: True, lambda: "", is_repair=True)
    monkeypatch.setattr(command, "steps_of", lambda _machine: iter([step, folder, repair]))
    result = CliRunner().invoke(main, ["setup", "sql.example"])
    assert result.exit_code == 0, result.output
    assert "+ warn\n  PostgreSQL will not start\n" in result.output
    assert "not for you" not in result.output
    assert "This machine is prepared. Now restart" in result.output
    assert machine.config.stat().st_mode & 0o777 == 0o755
    assert os.umask(0o077) == 0o022
    # An earlier version made it with the umask of its shell.
    machine.config.chmod(0o750)
    assert not folder.is_done()


def test_commands_get_no_variables_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere.example")
    monkeypatch.setenv("LC_ALL", "no_SUCH.locale")
    names = run(["sh", "-c", "env >&2"]).splitlines()
    assert "LC_ALL=C.UTF-8" in names
    assert [name for name in names if name.startswith("PG")] == []


def test_a_program_that_other_users_cannot_run_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    program = tmp_path / "plainsql-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(SetupError, match="The user postgres can't run"):
        check_program(Machine("sql.example", str(program)))
    with pytest.raises(SetupError, match="systemd needs an absolute path"):
        check_program(Machine("sql.example", "plainsql-server"))


def make_cluster(clusters: Path, major: int, name: str, port: int) -> None:
    folder = clusters / str(major) / name
    folder.mkdir(parents=True)
    (folder / "postgresql.conf").write_text(f"port = {port}\ndata_directory = '/data/{major}/{name}'\n")


def test_the_version_that_has_the_directory_is_preferred_and_its_port_is_read(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="lacks the locale"):
        find_machine("sql.example", _MACHINE.program, tmp_path)
    make_cluster(tmp_path, 15, "main", 5439)
    make_cluster(tmp_path, 17, "main", 5440)
    assert find_machine("sql.example", _MACHINE.program, tmp_path).major == "17"
    make_cluster(tmp_path, 15, "directory", 5444)
    found = find_machine("sql.example", _MACHINE.program, tmp_path)
    assert (found.major, found.cell_port, found.directory_port) == ("15", 5439, 5444)
    assert found.cell_data_folder == "/data/15/main"


def test_the_port_that_a_new_cluster_got_is_in_the_files(machine: Machine) -> None:
    steps = steps_of(machine)
    next(step for step in steps if "pg_createcluster" in step.shown)
    make_cluster(machine.clusters, 15, "directory", 5437)
    machine.config.mkdir()
    next(step for step in steps if step.shown.endswith("/data.env")).run()
    assert "port=5437 " in (machine.config / "data.env").read_text()


def test_a_cluster_that_was_interrupted_is_not_taken_for_one(machine: Machine) -> None:
    make_cluster(machine.clusters, 15, "directory", 5437)
    create = step_of(machine, "pg_createcluster")
    assert not create.is_done()
    with pytest.raises(SetupError, match="pg_dropcluster --stop 15 directory"):
        create.run()


def test_a_step_that_writes_several_files_is_done_with_the_last(machine: Machine) -> None:
    cell, units = step_of(machine, "cell init"), step_of(machine, "plainsql-server units")
    folder = machine.cluster("main")
    (folder / "conf.d").mkdir(parents=True)
    (folder / "conf.d/plainsql.conf").touch()
    assert not cell.is_done()
    (folder / "guard.service").touch()
    assert cell.is_done()
    machine.units.mkdir()
    (machine.units / "plainsql-data.service").touch()
    assert not units.is_done()
    assert CliRunner().invoke(main, ["units", str(machine.units)]).exit_code == 0
    assert units.is_done()


def test_root_takes_no_units_from_a_folder_of_postgres(machine: Machine) -> None:
    folder = machine.cluster("main")
    folder.mkdir(parents=True)
    for name in ("guard.service", "memory.conf"):
        (folder / name).write_text("[Service]\nUser=root\nExecStart=/tmp/anything\n")
    for step in [step for step in steps_of(machine) if step.shown.startswith(f"write {machine.units}/")]:
        step.run()
    guard, drop_in = sorted(file for file in machine.units.rglob("*") if file.is_file())
    assert "User=postgres\n" in guard.read_text()
    assert "LimitDATA=" in drop_in.read_text()


def run_pki(step: SetupStep) -> None:
    """Run a step of `pki` in this process, for the user who runs the tests."""
    words = shlex.split(step.shown)[1:]
    if "--owner" in words:
        place = words.index("--owner")
        words = words[:place] + words[place + 2 :]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output


def pki_steps(machine: Machine) -> tuple[SetupStep, SetupStep]:
    return step_of(machine, "pki revoke cell "), step_of(machine, "pki issue cell ")


@pytest.mark.parametrize("missing", [("server.key", "server.crt", "servers.crl"), ("servers.crl",)])
def test_a_certificate_that_was_interrupted_is_issued_again(machine: Machine, missing: tuple[str, ...]) -> None:
    run_pki(step_of(machine, "pki init"))
    revoke, issue = pki_steps(machine)
    assert (revoke.is_done(), issue.is_done()) == (True, False)
    run_pki(issue)
    assert (revoke.is_done(), issue.is_done()) == (True, True)
    before = (machine.config / "cell/server.crt").read_text()
    for name in missing:
        (machine.config / "cell" / name).unlink()
    assert (revoke.is_done(), issue.is_done()) == (False, False)
    run_pki(revoke)
    assert (revoke.is_done(), issue.is_done()) == (True, False)
    run_pki(issue)
    assert (revoke.is_done(), issue.is_done()) == (True, True)
    assert (machine.config / "cell/server.crt").read_text() != before
    # Once all were issued, the files may be on another machine: nothing is revoked, also without the operator's file.
    step_of(machine, "certificates.issued").run()
    (machine.config / "cell/server.crt").unlink()
    assert revoke.is_done()
    # An earlier version wrote the operator's file alone.
    (machine.config / "certificates.issued").unlink()
    assert not revoke.is_done()
    (machine.config / "operator.env").touch()
    assert revoke.is_done()


def test_all_certificates_are_issued_before_it_is_noted(machine: Machine) -> None:
    """Otherwise, one that was interrupted would stay incomplete."""
    shown = [step.shown for step in steps_of(machine)]
    noted = next(place for place, each in enumerate(shown) if "certificates.issued" in each)
    assert noted > max(place for place, each in enumerate(shown) if " pki " in each)


def test_no_authorities_are_made_beside_the_certificates_of_others(machine: Machine) -> None:
    init = step_of(machine, "pki init")
    run_pki(init)
    run_pki(pki_steps(machine)[1])
    (machine.config / "pki").rename(machine.config / "elsewhere")
    assert not init.is_done()
    with pytest.raises(SetupError, match=r"New authorities would not match them"):
        init.run()
    # Nothing is missing, so no authority is needed.
    for step in [step for step in steps_of(machine) if "pki issue" in step.shown]:
        folder = Path(shlex.split(step.shown)[shlex.split(step.shown).index("--to") + 1])
        folder.mkdir(exist_ok=True)
        for name in ("server.crt", "client.crt", "servers.crl"):
            (folder / name).touch()
    assert init.is_done()


def test_the_command_that_is_shown_for_the_keys_makes_no_file_for_all(machine: Machine) -> None:
    assert step_of(machine, "secrets new-key").shown.startswith("(umask 077 && ")


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


@pytest.mark.usefixtures("as_root")
def test_archives_are_for_both_clusters_each_with_its_own_folder_and_units(machine: Machine) -> None:
    steps = list(archive_steps(machine, Path("/srv/archive"), cell_options(machine)))
    shown = [step.shown for step in steps]
    clusters = f"{machine.clusters}/15"
    assert shown[:2] == [
        f"install -d --owner=postgres --group=postgres --mode=700 /srv/archive/{name}" for name in ("cell", "directory")
    ]
    program = "/opt/plainsql/bin/plainsql-server"
    assert shown[2].startswith(f"{program} cell files {clusters}/main --admin-role plainsql_admin ")
    assert shown[2].endswith(" --archive-to /srv/archive/cell --archive-port 5432")
    assert shown[3] == (
        f"{program} directory files {clusters}/directory --archive-to /srv/archive/directory"
        " --data-folder /var/lib/postgresql/15/directory --port 5433"
    )
    assert not any(step.is_done() for step in steps[2:])
    for step in steps[4:]:
        step.run()
    assert all(step.is_done() for step in steps[4:])
    assert {file.name for file in machine.units.iterdir()} == {
        "plainsql-archive@.service", "plainsql-archive-full.timer", "plainsql-archive-diff.timer",
        "plainsql-archive-rehearsal.service", "plainsql-archive-rehearsal.timer",
        "plainsql-archive-restores.service",
        "plainsql-directory-archive@.service", "plainsql-directory-archive-full.timer",
        "plainsql-directory-archive-diff.timer",
    }  # fmt: skip
    for name, cluster in (("plainsql-archive", "main"), ("plainsql-directory-archive", "directory")):
        assert f'"--config-path={clusters}/{cluster}/pgbackrest"' in (machine.units / f"{name}@.service").read_text()


@pytest.mark.usefixtures("as_root")
def test_an_archive_needs_pgbackrest_and_an_absolute_path(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    check_archive(machine)
    with pytest.raises(SetupError, match="absolute path"):
        check_archive(replace(machine, archive=Path("archive")))
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    with pytest.raises(SetupError, match="install the package pgbackrest"):
        check_archive(replace(machine, archive=Path("/srv/archive")))
    result = CliRunner().invoke(main, ["setup", "sql.example", "--dry-run", "--archive-to", "/srv/archive"])
    assert "install the package pgbackrest" in result.output
