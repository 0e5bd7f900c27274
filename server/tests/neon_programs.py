"""Runs the programs of `neon/`: the Neon driver and what is built on it, unmodified, on Node and over TLS.

seen = run_program("drizzle", service)
"""

import json
import os
import secrets
import subprocess
from typing import Any

from server.tests.page import NEON
from server.tests.service import Service

LIMIT_S = 110


def given(service: Service) -> dict[str, str]:
    """What each program gets: where the service is, a key, and a name for tables that no other test has."""
    return {"url": service.data_url, "key": service.api_key, "table": f"neon_{secrets.token_hex(4)}"}


def run_program(name: str, service: Service) -> dict[str, Any]:
    """What a program saw, by the name of its calls."""
    settings = given(service)
    command = ["node", str(NEON / f"{name}.mjs"), json.dumps(settings)]
    # Node trusts the authority of the service's certificate, and verifies it.
    environment = {**os.environ, "NODE_EXTRA_CA_CERTS": str(service.dev["ca_file"]), "TZ": "America/New_York"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    seen: dict[str, Any] = json.loads(ended.stdout.replace(settings["table"], "TABLE"))
    return seen
