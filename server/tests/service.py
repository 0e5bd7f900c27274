"""The real service for tests: `plainsql-server dev` in a temporary folder, called over HTTPS.

Tests see what users see, and every answer is compared with the OpenAPI documents. The folder is a copy of one in which
`dev` ran before, because a first start takes three times as long; `dev/` tests first starts.
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from plainsql_server.core.share import WHOLE
from server.tests import forks, logs
from server.tests.customers import Customers
from server.tests.documented import comparing
from server.tests.postgres import MAJOR
from server.tests.processes import processes_of, wait_for
from server.tests.recording import recording
from server.tests.run_folder import template
from server.tests.sealing import key_settings, note_keys
from server.tests.secrets_in_logs import refuse_secrets

# Services of several tests run at the same time, and beside that of the machine's user.
FREE_PORTS = ("--data-port=0", "--control-port=0", "--alias-port=0")
_START_LIMIT_S = 120
_STOP_LIMIT_S = 60
_DIVIDED_LIMIT_S = 60


@dataclass(frozen=True)
class Service:
    """A running service. `call` and its kin use the key that `dev` made, unless you pass another."""

    folder: Path
    dev: Mapping[str, Any]
    http: httpx.Client

    @property
    def data_url(self) -> str:
        return str(self.dev["data_url"])

    @property
    def control_url(self) -> str:
        return str(self.dev["control_url"])

    @property
    def api_key(self) -> str:
        return Path(self.dev["api_key_file"]).read_text().strip()

    def call(
        self,
        method: str,
        path: str,
        *,
        key: str | None = "",
        headers: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> httpx.Response:
        """Any request to the data plane. `key=None` sends no Authorization header."""
        sent = dict(headers or {})
        if key is not None:
            sent.setdefault("Authorization", f"Bearer {key or self.api_key}")
        return self.http.request(method, f"{self.data_url}{path}", headers=sent, **arguments)

    def post_query(self, sql: str, *params: Any, **fields: Any) -> httpx.Response:
        """POST /v1/query."""
        body = {"sql": sql, **({"params": list(params)} if params else {}), **fields}
        return self.call("POST", "/v1/query", json=body)

    def post_text(self, sql: str, **options: Any) -> httpx.Response:
        """POST /query."""
        return self.call("POST", "/query", content=sql.encode(), headers={"Content-Type": "text/plain"}, params=options)

    def query(self, sql: str, *params: Any, **fields: Any) -> dict[str, Any]:
        """The answer to a statement that must succeed. Numbers that JSON writes with a point are kept as text."""
        response = self.post_query(sql, *params, **fields)
        answer: dict[str, Any] = json.loads(response.content, parse_float=str)
        assert answer["success"], answer
        return answer

    def value(self, sql: str, *params: Any, **fields: Any) -> Any:
        """The only value of the only row."""
        (row,) = self.query(sql, *params, **fields)["rows"]
        (value,) = row.values()
        return value

    def engine(self, database: str | None = None) -> psycopg.Connection:
        """A superuser's connection past the service."""
        postgres = self.dev["postgres"]
        return psycopg.connect(
            host=postgres["socket"], port=postgres["port"], user=postgres["superuser"],
            dbname=database or postgres["database"], autocommit=True,
        )  # fmt: skip

    @property
    def directory_dsn(self) -> str:
        postgres = self.dev["postgres"]
        return (
            f"host={postgres['socket']} port={postgres['port']} user={postgres['superuser']} dbname=plainsql_directory"
        )

    @property
    def customers(self) -> Customers:
        """Makes organizations, databases and keys."""
        return Customers(self.directory_dsn)

    def data_processes(self) -> int:
        """How many data plane processes divide the limits, with those that tests have started, when they have done so.

        A process that has just started has its share when the others have renewed theirs.
        """
        query = "SELECT share FROM data_processes WHERE plane = 'data' AND seen_at > now() - interval '15 s'"
        with psycopg.connect(self.directory_dsn, autocommit=True) as connection:

            def shares() -> list[int]:
                return [share for (share,) in connection.execute(query)]

            def is_divided() -> bool:
                found = shares()
                return bool(found) and found == [WHOLE // len(found)] * len(found)

            wait_for(is_divided, _DIVIDED_LIMIT_S, shares)
            return len(shares())

    def new_key(self, *scopes: str, org: str = "dev", **options: str) -> str:
        """A fresh key with these scopes."""
        return self.customers.new_key(*scopes, organization=org, **options)

    def operate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`plainsql-server …` as this service's operator."""
        environment = {**os.environ, **key_settings(self.directory_dsn), "PLAINSQL_DIRECTORY_DSN": self.directory_dsn}
        ended = forks.run(arguments, environment)
        ended.check_returncode()
        return ended


@contextmanager
def running_service(*options: str, tier: str = "dedicated", workers: int = 1) -> Iterator[Service]:
    """A service of its own for the length of the block."""
    folder = Path(tempfile.mkdtemp(prefix="plainsql-test-"))
    copy_used_state(folder)
    process = _start(folder, "--tier", tier, "--workers", str(workers), *options)
    try:
        dev = _wait_until_ready(folder, process)
        note_keys(dev["postgres"]["socket"], folder / "secrets_keys")
        trust = ssl.create_default_context(cafile=dev["ca_file"]) if dev["ca_file"] else False
        compare = comparing({"data": dev["data_url"], "control": dev["control_url"]})
        event_hooks: dict[str, list[Callable[..., Any]]] = {"request": recording(), "response": [compare]}
        with (
            logs.watching(folder, "log/*.log"),
            httpx.Client(verify=trust, timeout=60, event_hooks=event_hooks) as http,
        ):
            yield Service(folder, dev, http)
    finally:
        try:
            _end(folder, process)
            refuse_secrets(*folder.rglob("*.log*"))
        finally:
            shutil.rmtree(folder)
            _printed(folder).unlink()


def copy_used_state(folder: Path) -> None:
    """Makes this the state folder of a `dev` that has run before."""
    # Not shutil: the owner of the cluster's files matters.
    subprocess.run(["cp", "-aT", template("service", _make_template), folder], check=True)


def _make_template(folder: Path) -> None:
    process = _start(folder)
    _wait_until_ready(folder, process)
    _end(folder, process)


def _start(folder: Path, *options: str) -> forks.Process:
    with _printed(folder).open("wb") as output:
        command = ["dev", "--dir", str(folder), "--postgres-major", str(MAJOR), *FREE_PORTS, *options]
        return forks.start(command, os.environ, output, folder)


def _printed(folder: Path) -> Path:
    """What `dev` prints. Not in its folder, which is empty at the first start."""
    return folder.with_name(f"{folder.name}.printed")


def _wait_until_ready(folder: Path, process: forks.Process) -> Mapping[str, Any]:
    described = folder / "dev.json"
    end = time.monotonic() + _START_LIMIT_S
    while not described.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"not ready within {_START_LIMIT_S} s:\n{_end(folder, process)}")
        time.sleep(0.02)
    dev: Mapping[str, Any] = json.loads(described.read_text())
    return dev


def _end(folder: Path, process: forks.Process) -> str:
    """Stops it as a user would; what it has printed. Whatever it started is gone as well, so that its folder may go."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_LIMIT_S)
        return _printed(folder).read_text()
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_LIMIT_S)
        # Its parts notice that it is dead and stop by themselves.
        wait_for(lambda: not processes_of(folder), _STOP_LIMIT_S, lambda: f"left behind: {processes_of(folder)}")
        raise AssertionError(f"not stopped within {_STOP_LIMIT_S} s:\n{_printed(folder).read_text()}") from None
