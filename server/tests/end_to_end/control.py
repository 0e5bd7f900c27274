"""The control plane, called as its users do; and control processes of a test's own, which it may kill.

Owns the calling. Nothing of the service is imported.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from plainsql_server.dev.ports import free_port
from plainsql_server.directory.rights.grants import Role
from server.tests import forks, logs, plain_http
from server.tests.postgres import as_role
from server.tests.sealing import key_settings
from server.tests.service import Service

_START_LIMIT_S = 30


def call(service: Service, method: str, path: str, *, key: str | None = "", **arguments: Any) -> httpx.Response:
    """Any request to the control plane. `key=None` sends no Authorization header."""
    headers = {} if key is None else {"Authorization": f"Bearer {key or service.api_key}"}
    return service.http.request(method, f"{service.control_url}{path}", headers=headers, **arguments)


def answer(service: Service, method: str, path: str, *, status: int = 200, **arguments: Any) -> Any:
    """The body of an answer that must have this status: the one field beside success and request_id, or all of it."""
    response = call(service, method, path, **arguments)
    assert response.status_code == status, response.text
    if status == 204:
        assert response.content == b""
        assert "content-length" not in response.headers
        return None
    body = response.json()
    assert body["success"] is True
    assert body["request_id"] == response.headers["x-request-id"]
    rest = {name: value for name, value in body.items() if name not in ("success", "request_id")}
    return next(iter(rest.values())) if len(rest) == 1 else rest


def new_key(service: Service, *scopes: str, key: str = "", **fields: Any) -> dict[str, Any]:
    """A key made over HTTP, with its secret."""
    body = {"name": "test", "scopes": list(scopes), **fields}
    made: dict[str, Any] = answer(service, "POST", "/v1/keys", status=201, key=key, json=body)
    return made


def new_session(service: Service, *, key: str = "", **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = answer(service, "POST", "/v1/session", status=201, key=key, json=fields)
    return made


def query(service: Service, key: str, sql: str = "select 1 as one", **fields: Any) -> httpx.Response:
    """A query on the data plane."""
    return service.call("POST", "/v1/query", key=key, json={"sql": sql, **fields})


@dataclass
class ControlNode:
    """A control-plane process with settings of its own, over plain HTTP."""

    directory_dsn: str
    port: int
    log: Path
    settings: dict[str, str]
    process: forks.Process = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it answers."""
        environment = {
            **os.environ, **key_settings(self.directory_dsn), **self.settings,
            "PLAINSQL_DIRECTORY_DSN": as_role(self.directory_dsn, Role.CONTROL),
            "PLAINSQL_CONTROL_PORT": str(self.port),
        }  # fmt: skip
        with self.log.open("ab") as log:
            self.process = forks.start(["control"], environment, log, self.log.parent)
        end_s = time.monotonic() + _START_LIMIT_S
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end_s, self.log.read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kills it with -9, if it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        try:
            return plain_http.get(f"{self.url}/health?live", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def running_control(directory_dsn: str, **settings: object) -> Iterator[ControlNode]:
    """A control-plane process for the length of the block; `drain_ms=0` is PLAINSQL_DRAIN_MS."""
    variables = {f"PLAINSQL_{name.upper()}": str(value) for name, value in settings.items() if name.islower()}
    variables |= {name: str(value) for name, value in settings.items() if not name.islower()}
    with tempfile.TemporaryDirectory(prefix="plainsql-control-") as folder:
        node = ControlNode(directory_dsn, free_port(), Path(folder) / "log", variables)
        try:
            with logs.watching(node.log.parent, "log"):
                node.start()
                yield node
        finally:
            node.kill()
