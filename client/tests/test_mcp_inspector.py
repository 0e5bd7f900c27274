"""The inspector of the protocol's authors lists our tools: it rejects a listing that doesn't fit the protocol."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client.tests.agents import environment
from server.tests.service import Service

# It looks for its own package.json from the folder that it is started in.
_INSPECTOR = Path(__file__).parents[2] / "server/tests/readers/node_modules/@modelcontextprotocol/inspector-cli/build"


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_inspector_lists_and_calls_the_tools(service: Service, npm_packages: None, transport: str) -> None:
    target = [sys.executable, "-m", "plainsql", "mcp"]
    if transport == "http":
        key = f"Authorization: Bearer {service.api_key}"
        target = [f"{service.control_url}/mcp", "--transport", "http", "--header", key]
    assert sorted(each["name"] for each in inspect(service, *target, "--method", "tools/list")["tools"]) == [
        "describe_table", "explain", "list_databases", "list_tables", "query", "request_outcome", "run_transaction",
    ]  # fmt: skip
    if transport == "http":
        called = ["--method", "tools/call", "--tool-name", "query", "--tool-arg", "sql=select 6 * 7 as n"]
        assert "[[42]]" in inspect(service, *target, *called)["structuredContent"]["untrusted_data"]


def inspect(service: Service, *arguments: str) -> Any:
    """What the inspector prints. Fails if it does."""
    variables = environment(service, service.api_key) | {"NODE_EXTRA_CA_CERTS": str(service.dev["ca_file"])}
    command = ["node", "index.js", *arguments]
    done = subprocess.run(
        command, check=False, cwd=_INSPECTOR, env=variables, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
