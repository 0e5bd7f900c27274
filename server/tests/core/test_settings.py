import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from plainsql_server import assembly
from plainsql_server.assembly import control_application, data_application
from plainsql_server.cli import main
from plainsql_server.metrics import Metrics
from plainsql_server.settings import (
    PREFIX,
    Settings,
    SettingsError,
    describe_settings,
    load_environment_file,
    read_settings,
)

pytestmark = pytest.mark.unit

REQUIRED = {"PLAINSQL_DIRECTORY_DSN": "dbname=directory"}


def test_one_variable_is_enough() -> None:
    settings = read_settings(REQUIRED)
    assert settings.directory_dsn == "dbname=directory"
    assert settings == Settings(directory_dsn="dbname=directory")


def test_a_variable_becomes_the_type_of_its_setting() -> None:
    settings = read_settings({**REQUIRED, "PLAINSQL_DATA_PORT": "9000", "PLAINSQL_ALIAS_URL": "https://alias"})
    assert settings.data_port == 9000
    assert settings.alias_url == "https://alias"


def test_an_empty_variable_counts_as_not_set() -> None:
    settings = read_settings({**REQUIRED, "PLAINSQL_DATA_PORT": "", "PLAINSQL_ALIAS_URL": ""})
    assert settings.data_port == Settings(directory_dsn="").data_port
    assert settings.alias_url is None


def test_variables_of_others_are_ignored() -> None:
    others = {"PATH": "/bin", "DATA_PORT": "1", "PLAINSQL_": "x", "PLAINSQLX": "y"}
    assert read_settings({**REQUIRED, **others}) == read_settings(REQUIRED)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("DATA_PORT", "many"), ("DATA_PORT", "65536"), ("DATA_PORT", "-1"), ("WORKERS", "0"), ("WORKERS", "65"),
     ("WORKERS", "1.5"), ("POOL_MAX_CONNECTIONS", "0"), ("CONNECT_TIMEOUT_MS", "0"), ("PRINCIPAL_CACHE_MS", "-1"),
     ("REDIS_URL", "localhost:6379"), ("SECRETS_KEYS", "short"), ("SECRETS_KEYS", "x" * 44),
     ("UNSEALED_SECRETS", "refuse")],
)  # fmt: skip
def test_a_value_that_a_setting_cannot_take_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({**REQUIRED, f"PLAINSQL_{variable}": value})
    assert f"PLAINSQL_{variable}" in str(refused.value)


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({})
    assert "PLAINSQL_DIRECTORY_DSN" in str(refused.value)


def test_a_wrong_value_is_not_repeated_because_it_may_be_a_secret_in_the_wrong_place() -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({**REQUIRED, "PLAINSQL_DATA_PORT": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        read_settings(REQUIRED).data_port = 1  # type: ignore[misc]


def test_every_setting_is_listed_with_its_variable_and_default() -> None:
    listed = {variable: default for variable, default, _ in describe_settings()}
    assert listed["PLAINSQL_DIRECTORY_DSN"] == "required"
    assert listed["PLAINSQL_DATA_PORT"] == "8400"
    assert listed["PLAINSQL_ALIAS_URL"] == ""
    files = {f"PLAINSQL_{name}_FILE" for name in ("DIRECTORY_DSN", "REDIS_URL", "SECRETS_KEYS")}
    assert set(listed) - files == {PREFIX + name.upper() for name in Settings.__struct_fields__}


def test_each_process_has_the_next_port_and_an_address_for_the_alias() -> None:
    settings = read_settings({**REQUIRED, "PLAINSQL_WORKER_PORT": "8500", "PLAINSQL_WORKERS": "2"})
    assert list(settings.own_ports) == [8500, 8501]
    assert settings.own_address(8501) == "127.0.0.1:8501"
    advertised = {**REQUIRED, "PLAINSQL_DATA_HOST": "0.0.0.0", "PLAINSQL_ADVERTISED_HOST": "fd00::1"}
    assert read_settings({**advertised, "PLAINSQL_WORKER_PORT": "8500"}).own_address(8500) == "[fd00::1]:8500"
    assert not read_settings(advertised).own_ports


def test_a_container_advertises_the_address_of_its_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    own = {"PLAINSQL_DATA_HOST": "0.0.0.0", "PLAINSQL_ADVERTISED_HOST": "auto", "PLAINSQL_WORKER_PORT": "8500"}
    assert read_settings({**REQUIRED, **own}).own_address(8500) == "127.0.0.1:8500"


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("WORKER_PORT", "65535", "WORKER_PORT"),
        ("WORKER_PORT", "8399", "DATA_PORT"),
        ("METRICS_PORT", "8499", "WORKER_PORT"),
        ("METRICS_PORT", "8501", "WORKER_PORT"),
        ("METRICS_PORT", "8399", "METRICS_PORT"),
        ("METRICS_PORT", "65535", "METRICS_PORT"),
        ("DATA_HOST", "0.0.0.0", "ADVERTISED_HOST"),
        ("DATA_HOST", "::", "ADVERTISED_HOST"),
    ],
)
def test_ports_that_could_not_be_used_are_refused(variable: str, value: str, named: str) -> None:
    own = {"PLAINSQL_WORKER_PORT": "8500", "PLAINSQL_WORKERS": "2"}
    with pytest.raises(SettingsError, match=f"`PLAINSQL_{named}`"):
        read_settings({**REQUIRED, **own, f"PLAINSQL_{variable}": value})


def test_metrics_ports_beside_the_others_are_accepted() -> None:
    own = {"PLAINSQL_WORKER_PORT": "8500", "PLAINSQL_WORKERS": "2"}
    for port, ports in (("8502", [8502, 8503]), ("8498", [8498, 8499]), ("0", [])):
        settings = read_settings({**REQUIRED, **own, "PLAINSQL_METRICS_PORT": port})
        assert list(settings.metrics_ports) == ports


def test_the_value_of_a_secret_setting_can_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("dbname=directory password=hunter2 \n")
    (tmp_path / "redis").write_text("redis://:hunter2@localhost\n")
    files = {"PLAINSQL_DIRECTORY_DSN_FILE": str(tmp_path / "dsn"), "PLAINSQL_REDIS_URL_FILE": str(tmp_path / "redis")}
    settings = read_settings(files)
    assert settings.directory_dsn == "dbname=directory password=hunter2 "
    assert settings.redis_url == "redis://:hunter2@localhost"
    assert set(files) <= {variable for variable, _, _ in describe_settings()}
    # Only secrets: PLAINSQL_DATA_PORT_FILE is no variable of ours.
    assert "PLAINSQL_DATA_PORT_FILE" not in {variable for variable, _, _ in describe_settings()}


def test_a_file_that_cannot_be_used_is_named_without_its_content(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("\n")
    with pytest.raises(SettingsError, match=r"`PLAINSQL_DIRECTORY_DSN` and `PLAINSQL_DIRECTORY_DSN_FILE` are set"):
        read_settings({**REQUIRED, "PLAINSQL_DIRECTORY_DSN_FILE": str(tmp_path / "dsn")})
    with pytest.raises(SettingsError, match=r"`PLAINSQL_DIRECTORY_DSN_FILE`.*is empty"):
        read_settings({"PLAINSQL_DIRECTORY_DSN_FILE": str(tmp_path / "dsn")})
    with pytest.raises(SettingsError, match=r"`PLAINSQL_DIRECTORY_DSN_FILE`.*No such file"):
        read_settings({"PLAINSQL_DIRECTORY_DSN_FILE": str(tmp_path / "missing")})
    (tmp_path / "redis").write_text("hunter2\n")
    with pytest.raises(SettingsError) as refused:
        read_settings({**REQUIRED, "PLAINSQL_REDIS_URL_FILE": str(tmp_path / "redis")})
    assert "hunter2" not in str(refused.value)


def test_settings_can_come_from_the_environment_file_of_a_unit(tmp_path: Path) -> None:
    file = tmp_path / "data.env"
    file.write_text('PLAINSQL_DIRECTORY_DSN="dbname=x"\nPLAINSQL_DATA_PORT=9000\n')
    environ = {"PLAINSQL_DATA_PORT": "1", "PATH": "/bin"}
    load_environment_file(file, environ)
    assert environ == {"PLAINSQL_DIRECTORY_DSN": "dbname=x", "PLAINSQL_DATA_PORT": "9000", "PATH": "/bin"}
    file.write_text("nonsense\n")
    result = CliRunner().invoke(main, ["--environment-file", str(file), "settings"])
    assert result.exit_code == 1
    assert "Line 1 is not of the form NAME=value" in result.output


@pytest.mark.parametrize(("application", "variable"), [
    (data_application, "METRICS_PORT"), (control_application, "CONTROL_METRICS_PORT"),
])  # fmt: skip
@pytest.mark.parametrize("host", [None, "10.0.0.7"])
def test_metrics_are_for_this_machine_unless_another_address_is_set(
    monkeypatch: pytest.MonkeyPatch, application: Callable[[], object], variable: str, host: str | None
) -> None:
    served = list[tuple[str, range]]()
    # It would change this process.
    monkeypatch.setattr(assembly, "spare_requests", lambda: None)
    monkeypatch.setattr(Metrics, "serve", lambda _, *where: served.append(where))
    public = {"PLAINSQL_DATA_HOST": "0.0.0.0", "PLAINSQL_CONTROL_HOST": "0.0.0.0"}
    chosen = {"PLAINSQL_METRICS_HOST": host} if host else {}
    for name, value in {**REQUIRED, **public, **chosen, f"PLAINSQL_{variable}": "9400"}.items():
        monkeypatch.setenv(name, value)
    application()
    assert served == [(host or "127.0.0.1", range(9400, 9401))]
