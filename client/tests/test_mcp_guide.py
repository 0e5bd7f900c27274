"""The guide to agents, as a reader follows it: its commands, its configurations and its programs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from client.tests.agents import agent
from server.tests.service import Service

_GUIDE = (Path(__file__).parents[2] / "docs/mcp.md").read_text(encoding="utf-8")
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"^# (.*)$", re.MULTILINE)
# Every test has a service that runs already.
_NOT_RUN = ("pip install", "plainsql-server dev")


def blocks(language: str) -> list[str]:
    return [text for name, text in _FENCED.findall(_GUIDE) if name == language]


def test_the_guide_says_that_the_packages_are_not_published_as_long_as_the_readme_does() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert ("not published yet" in _GUIDE) == ("not published yet" in readme)


@pytest.fixture
def folder(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in which `plainsql-server dev` runs. The guide's database has a name of its own here."""
    (tmp_path / ".plainsql").symlink_to(service.folder)
    name = f"guide{uuid4().hex[:8]}"
    service.customers.add_database(name)
    monkeypatch.setenv("PLAINSQL_DATABASE", name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return name


def test_the_guide_does_what_it_says(service: Service, folder: str) -> None:
    for line in "".join(blocks("sh")).splitlines():
        if not line.startswith(_NOT_RUN):
            subprocess.run(["bash", "-ec", line.replace("main", folder)], check=True, capture_output=True, timeout=100)
    for number, text in enumerate(blocks("python")):
        program = Path(f"program{number}.py")
        program.write_text(text.replace('"main"', f'"{folder}"'), encoding="utf-8")
        done = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True, timeout=150)
        assert done.stdout.splitlines() == _SHOWN.findall(text)
    assert number == 1


async def test_the_guide_s_configurations_work(service: Service, folder: str) -> None:
    stdio, http = (json.loads(text)["mcpServers"]["plainsql"] for text in blocks("json"))
    command: dict[str, Any] = json.loads(json.dumps(stdio).replace("main", folder))
    assert shutil.which(command["command"]) is not None
    async with Client(StdioServerParameters(**command)) as session:
        assert not (await session.call_tool("list_tables", {})).is_error
    path, _, option = http["url"].partition("?")
    assert path == "https://localhost:8401/mcp"
    assert option == "database=main"
    assert http["headers"] == {"Authorization": "Bearer svc_k_…"}
    async with agent(service, "http", database=folder) as session:
        assert not (await session.call_tool("list_tables", {})).is_error
