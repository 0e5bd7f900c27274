"""Where a client's address and key come from, and that no key goes to a service that it is not of."""

import json
import os
from pathlib import Path

import pytest

from plainsql.errors import NetworkError, SettingsError
from plainsql.settings import Configured, resolve

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("URL", "KEY", "DATABASE", "CA_FILE", "CONTROL_URL", "INSECURE"):
        monkeypatch.delenv(f"PLAINSQL_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def write_dev(folder: Path, url: str = "https://localhost:8400") -> None:
    (folder / ".plainsql").mkdir()
    (folder / ".plainsql/api_key").write_text("svc_k_dev\n")
    described = {"data_url": url, "control_url": "https://localhost:8401", "alias_url": None, "ca_file": "/ca.pem"}
    described["api_key_file"] = str(folder / ".plainsql/api_key")
    (folder / ".plainsql/dev.json").write_text(json.dumps(described))


def write_login(folder: Path) -> None:
    (folder / "config/plainsql").mkdir(parents=True)
    saved = {"url": "https://db.example", "key": "svc_k_saved"}
    (folder / "config/plainsql/login.json").write_text(json.dumps(saved))


def test_arguments_win_over_the_environment_and_that_over_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_login(tmp_path)
    assert (resolve().address.url, resolve().key) == ("https://db.example", "svc_k_saved")
    write_dev(tmp_path)
    assert (resolve().address.url, resolve().key, resolve().ca_file) == (
        "https://localhost:8400",
        "svc_k_dev",
        "/ca.pem",
    )
    monkeypatch.setenv("PLAINSQL_URL", "https://env.example")
    monkeypatch.setenv("PLAINSQL_KEY", "svc_k_env")
    assert (resolve().address.url, resolve().key, resolve().ca_file) == ("https://env.example", "svc_k_env", None)
    assert (resolve("https://mine", "svc_k_mine").address.url, resolve("https://mine", "svc_k_mine").key) == (
        "https://mine", "svc_k_mine",
    )  # fmt: skip


def test_the_dev_service_is_found_from_every_folder_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dev(tmp_path)
    below = tmp_path / "app/src"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert (resolve().key, resolve().source) == ("svc_k_dev", "../../.plainsql/dev.json")
    (tmp_path / "app/.plainsql").mkdir()
    assert resolve().key == "svc_k_dev"
    nearer = tmp_path / "app/nearer"
    nearer.mkdir()
    write_dev(nearer, "https://localhost:9400")
    monkeypatch.chdir(nearer)
    assert (resolve().address.url, resolve().source) == ("https://localhost:9400", ".plainsql/dev.json")


def test_a_file_of_another_user_above_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address would get what we send, for example from a folder below /tmp."""
    write_dev(tmp_path)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    if os.getuid() == 0:
        for name in ("dev.json", "api_key"):
            os.chown(tmp_path / ".plainsql" / name, 4_712, -1)
    monkeypatch.setattr("os.getuid", lambda: 4_711)
    with pytest.raises(SettingsError, match="No service URL"):
        resolve()


def test_a_stopped_dev_service_is_never_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(tmp_path)
    write_dev(tmp_path)
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    write_dev(project)
    (project / ".plainsql/dev.json").unlink()
    for folder in (project, project / "src"):
        monkeypatch.chdir(folder)
        with pytest.raises(NetworkError, match=r"project isn't running\. Start it there") as caught:
            resolve()
        assert caught.value.outcome == "not_executed"
    assert resolve("https://db.example").key == "svc_k_saved"
    monkeypatch.setenv("PLAINSQL_URL", "https://db.example")
    assert resolve().key == "svc_k_saved"


@pytest.mark.parametrize("host", ["db.example", "10.0.0.1", "127.0.0.1.example", "localhost.example", "[fe80::1]"])
def test_a_key_is_sent_in_clear_text_only_on_this_machine_or_if_asked(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{host}:8400"
    with pytest.raises(SettingsError, match=r"doesn't use TLS.*PLAINSQL_INSECURE=1"):
        resolve(url, "svc_k_x")
    with pytest.raises(SettingsError, match="doesn't use TLS"):
        resolve("https://db.example", "svc_k_x", control_url=url)
    assert resolve(url, "svc_k_x", insecure=True).address.url == url
    assert resolve(f"plainsql://k:svc_k_x@{host}:8400?tls=false").address.url == url
    monkeypatch.setenv("PLAINSQL_INSECURE", "1")
    assert resolve(url, "svc_k_x").address.url == url


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "app.localhost"])
def test_this_machine_needs_no_tls(host: str) -> None:
    assert resolve(f"http://{host}:8400", "svc_k_x").address.url == f"http://{host}:8400"


def test_the_key_of_a_file_is_sent_only_to_the_address_in_that_file(tmp_path: Path) -> None:
    write_dev(tmp_path)
    write_login(tmp_path)
    assert resolve("https://localhost:8400").key == "svc_k_dev"
    assert resolve("https://db.example").key == "svc_k_saved"
    with pytest.raises(SettingsError, match=r"No key for https://elsewhere\.example"):
        resolve("https://elsewhere.example")


def test_without_settings_the_error_explains_what_to_do() -> None:
    with pytest.raises(SettingsError, match="set PLAINSQL_URL"):
        resolve()


@pytest.mark.parametrize(
    "url", ["ftp://x", "localhost:8400", "https://", "https://x:y", "https://u:p@x", "https://x/y"]
)
def test_an_invalid_address_is_rejected(url: str) -> None:
    with pytest.raises(SettingsError):
        resolve(url, "svc_k_x")


def test_an_address_can_carry_everything_and_hides_the_key() -> None:
    settings = resolve("plainsql://k:svc_k_x@db.example:8443/shop?ca_file=/ca.pem")
    assert (settings.address.url, settings.key, settings.database, settings.ca_file) == (
        "https://db.example:8443", "svc_k_x", "shop", "/ca.pem",
    )  # fmt: skip
    assert resolve("plainsql://k:svc_k_x@localhost:80?tls=false").address.url == "http://localhost"
    assert "svc_k_x" not in repr(settings)


@pytest.mark.parametrize(
    "url", ["https://localhost:8400", "https://[::1]", "http://127.0.0.1:80", "https://db.example"]
)
def test_the_settings_as_one_url_are_the_same_settings(url: str, tmp_path: Path) -> None:
    client = Configured()
    client.settings = given = resolve(url, "svc_k_%/@1", database="my base", ca_file=None if "p:" in url else "a b.pem")
    again = resolve(client.sqlalchemy_url)
    assert (again.address, again.key, again.database) == (given.address, given.key, given.database)
    # The program that uses it may run in another folder.
    assert again.ca_file == (None if "p:" in url else str(tmp_path / "a b.pem"))
    assert (client.url, "svc_k" in client.url) == (given.address.url, False)
