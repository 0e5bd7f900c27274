"""Redis and nginx, which `dev` runs where they are installed, and does without where they are not."""

import os
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.tests.dev.running import Dev, Starter
from server.tests.extension_files import copy_uncompiled

pytestmark = pytest.mark.slow


def get(run: Dev, url: str, path: str) -> dict[str, Any]:
    ssl_context = ssl.create_default_context(cafile=run.description()["ca_file"])
    response = httpx.get(url + path, verify=ssl_context, timeout=30)
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    return answer


def test_with_both_installed_there_is_an_alias_and_permits_come_from_redis(state: Path, start: Starter) -> None:
    run = start(state)
    run.wait_ready()
    assert "aren't compiled" not in run.output
    described = run.description()
    assert get(run, described["alias_url"], "/")["alias_url"] == described["alias_url"]
    assert get(run, described["data_url"], "/health")["checks"]["limiter"] == "ok"
    assert '"event":"limiter","state":"shared"' in (state / "log" / "data.log").read_text()


def test_without_optional_programs_and_modules_dev_starts_and_says_so(
    state: Path, start: Starter, tmp_path: Path
) -> None:
    copy_uncompiled(tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = start(state, in_new_process=True, environment={"PATH": "/nonexistent", "PYTHONPATH": path})
    run.wait_ready()
    assert "The extension modules aren't compiled" in run.output
    described = run.description()
    assert "apt install redis-server" in run.output
    assert "apt install nginx-light" in run.output
    assert described["alias_url"] is None
    assert get(run, described["data_url"], "/")["alias_url"] is None
    assert get(run, described["data_url"], "/health")["status"] == "ok"
