"""The systemd units: what the command writes, and what systemd makes of it."""

import os
import re
import shlex
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.core.environment_file import parse_environment_file
from plainsql_server.operations.files.units import guard_unit, unit_texts
from plainsql_server.settings import read_settings
from server.tests.pki_cell import Pki

_SAMPLES = Path(__file__).resolve().parents[3] / "deploy/systemd"
_PROGRAM = "/opt/plainsql/bin/plainsql-server"
_PLANES = ("plainsql-data.service", "plainsql-control.service")
_BACKUP = ("plainsql-backup.service", "plainsql-backup.timer")
_RENEW = ("plainsql-renew.service", "plainsql-renew.timer")
_OURS = (*_PLANES, *_BACKUP, *_RENEW)
_GUARD = _SAMPLES.parent / "cell/guard.service"
# Debian's unit for PostgreSQL runs with these, too. A plane needs no more than a cell.
_HARDENED = ("NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "CapabilityBoundingSet=")


def test_the_samples_are_what_the_command_writes(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["units", str(tmp_path), "--program", _PROGRAM])
    assert result.exit_code == 0, result.output
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written == {name: (_SAMPLES / name).read_text() for name in _OURS}
    for name in _PLANES:
        assert "User=plainsql\n" in written[name]
        assert set(_HARDENED) <= set(written[name].splitlines())
        # A minimal machine has no such program.
        assert "/bin/kill" not in written[name]
    # Backups may do more than planes, which must not be able to read their key.
    assert "User=plainsql-backup\n" in written["plainsql-backup.service"]


@pytest.mark.parametrize("unit", [*(_SAMPLES / name for name in _OURS), _GUARD], ids=lambda path: path.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    # The program and the environment file are not on this machine.
    text = unit.read_text().replace(_PROGRAM, "/bin/true").replace("EnvironmentFile=", "EnvironmentFile=-")
    (tmp_path / unit.name).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit.name],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    # It also reports units of this machine.
    ours = [line for line in checked.stderr.splitlines() if unit.name in line]
    assert (ours, checked.returncode) == ([], 0), checked.stderr
    broken = text.replace("ExecStart=/", "ExecStart=relative/").replace("OnCalendar=", "OnCalendar=never ")
    (tmp_path / unit.name).write_text(broken)
    again = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit.name], capture_output=True, check=False, timeout=60
    )
    assert again.returncode != 0, "systemd-analyze would not have noticed"


def test_the_unit_of_renewals_renews_what_expires_soon_and_reloads_also_if_that_fails(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    assert CliRunner().invoke(main, ["pki", "init", str(tmp_path / "pki")]).exit_code == 0
    pki.issue("soon", "--server", "localhost", "--days", "60")
    pki.issue("later", "--server", "localhost")
    text = unit_texts(_PROGRAM, str(tmp_path))["plainsql-renew.service"]
    (renew,) = commands(text, "ExecStart")
    # systemd runs this one also after a failure, which the unit then keeps.
    (reload,) = commands(text, "ExecStopPost")
    assert renew[0] == _PROGRAM
    result = CliRunner().invoke(main, renew[1:])
    assert result.exit_code == 0, result.output
    assert (pki.states("soon"), pki.states("later")) == (["replaced", "in use"], ["in use"])
    # A unit that is not running is left alone; all others read their files again.
    assert reload[:2] == ["systemctl", "try-reload-or-restart"]
    assert {"postgresql.service", *_PLANES} == set(reload[2:])


def commands(unit: str, setting: str) -> list[list[str]]:
    lines = [line.partition("=") for line in unit.splitlines()]
    return [shlex.split(value) for name, _, value in lines if name == setting]


def test_a_certificate_that_expires_has_a_dozen_attempts_to_be_renewed() -> None:
    texts = unit_texts(_PROGRAM)
    (calendar,) = commands(texts["plainsql-renew.timer"], "OnCalendar")
    shown = subprocess.run(
        ["systemd-analyze", "calendar", "--iterations=60", " ".join(calendar)],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "TZ": "UTC"},
    )  # fmt: skip
    found = re.findall(r"(\d{4}-\d\d-\d\d) 04:30:00 UTC", shown.stdout)
    runs = sorted({datetime.fromisoformat(each) for each in found})
    (renew,) = commands(texts["plainsql-renew.service"], "ExecStart")
    within = timedelta(days=int(renew[renew.index("--within-days") + 1]))
    for end in (runs[0] + within + timedelta(days=day) for day in range(300)):
        assert len([run for run in runs if end - within <= run < end]) >= 12


@pytest.mark.parametrize("path", ["plainsql-server", "/opt/my programs/plainsql-server", "/opt/%h"])
def test_a_path_that_systemd_would_misread_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="systemd needs"):
        unit_texts(path)
    with pytest.raises(ValueError, match="systemd needs"):
        guard_unit(path, "/var/lib/postgresql/15/main")


def test_the_guard_is_started_by_its_full_path() -> None:
    """A shell's PATH says nothing about that of systemd."""
    assert f"ExecStart={_PROGRAM} cell guard" in guard_unit(_PROGRAM, "/var/lib/postgresql/15/main")
    assert f"ExecStart={_PROGRAM} cell guard" in _GUARD.read_text()


@pytest.mark.parametrize(
    ("data_folder", "writable"),
    [("/var/lib/postgresql/15/main", "-/var/lib/postgresql/15 -/var/lib/postgresql/15/main"), ("/data", "-/data")],
)
def test_the_guard_can_write_to_a_data_folder_that_is_made_anew(data_folder: str, writable: str) -> None:
    """systemd mounts what it makes writable, so a new folder of the same name would not be."""
    assert f"\nReadWritePaths={writable}\n" in guard_unit(_PROGRAM, data_folder)


@pytest.mark.parametrize("plane", ["data", "control"])
def test_the_sample_of_the_environment_is_valid(plane: str) -> None:
    variables = parse_environment_file((_SAMPLES / f"{plane}.env").read_text())
    settings = read_settings(variables)
    assert settings.tls_key_file == f"/etc/plainsql/{plane}/server.key"
    assert f"user=plainsql_{plane} " in settings.directory_dsn
    assert variables["PGSSLKEY"] == f"/etc/plainsql/{plane}/client.key"
