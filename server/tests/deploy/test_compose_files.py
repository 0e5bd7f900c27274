"""The files of Compose, without running them. `test_compose.py` does that, in `make test-deploy`."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[3] / "deploy/compose"


def services(file: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / file).read_text())["services"]
    return found


@pytest.mark.parametrize("plane", ["data", "control"])
def test_both_planes_count_requests_in_redis(plane: str) -> None:
    # One that did not would grant its share in addition.
    service = services("compose.yaml")[plane]
    assert service["environment"]["PLAINSQL_REDIS_URL_FILE"] == "/etc/plainsql/own/redis.url"
    assert f"./secrets/{plane}:/etc/plainsql/own:ro" in service["volumes"]
    assert "redis" in service["depends_on"]


@pytest.mark.parametrize("name", services("compose.yaml"))
def test_services_have_no_more_rights_than_they_need(name: str) -> None:
    service = services("compose.yaml")[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_metrics_are_published_on_this_machine_only() -> None:
    ports = [port for each in services("compose.monitoring.yaml").values() for port in each.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("file", [".env", "acme.txt", "secrets/secrets.keys", "tls/server.key", "generated/cell"])
def test_git_ignores_secrets(file: str) -> None:
    assert subprocess.run(["git", "check-ignore", "--quiet", file], cwd=FOLDER, check=False).returncode == 0
