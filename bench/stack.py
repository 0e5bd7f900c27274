"""The stack under test: `plainsql-server dev` in a temporary folder, with pgbench's tables in its database.

    with running_stack(workers, scale, "--no-tls") as stack: …
    with running_empty_stack(workers, "--no-tls", settings={"PLAINSQL_CELL_MAX_RUNNING": "8"}) as stack: …
    with running_stack_in(folder, workers, "--no-tls") as stack: …  # again and again

Everything runs on this machine, the load generators too. Settings come from the environment, as always; the metrics are
served, too.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plainsql_server.dev.ports import free_port

# A cell with thousands of databases takes long to read their files, and to write its last checkpoint.
_START_LIMIT_S = 300
_STOP_LIMIT_S = 300


@dataclass(frozen=True)
class Stack:
    """A running service and the way past it to its engine."""

    folder: Path
    data_url: str
    control_url: str
    # None if nginx isn't installed.
    alias_url: str | None
    # By the name of the part: data, control, postgres; alias and redis if there are such.
    pids: Mapping[str, int]
    # One for each process of the data plane.
    metrics_ports: range
    api_key: str
    socket: str
    port: int
    superuser: str
    database: str
    owner_role: str

    @property
    def data_pid(self) -> int:
        return self.pids["data"]

    @property
    def postgres_pid(self) -> int:
        return self.pids["postgres"]

    @property
    def secrets_keys_file(self) -> Path:
        return self.folder / "secrets_keys"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"}

    def psql(self, sql: str, database: str | None = None) -> str:
        """What a statement returns, run by the superuser past the service."""
        command = ["psql", *self.engine_arguments(self.superuser), "-qAtX", "-d", database or self.database, "-c", sql]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def engine_arguments(self, role: str) -> list[str]:
        return ["-h", self.socket, "-p", str(self.port), "-U", role]


@contextmanager
def running_stack(workers: int, scale: int, *options: str, tier: str = "dedicated") -> Iterator[Stack]:
    """A fresh service with pgbench's tables at `scale`, gone afterwards."""
    with running_empty_stack(workers, *options, tier=tier) as stack:
        _fill(stack, scale)
        yield stack


@contextmanager
def running_empty_stack(
    workers: int, *options: str, tier: str = "dedicated", settings: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """A fresh service, gone afterwards. `settings` are environment variables of its own."""
    with stack_folder() as folder, running_stack_in(folder, workers, *options, tier=tier, settings=settings) as stack:
        yield stack


@contextmanager
def stack_folder() -> Iterator[Path]:
    """An empty folder for a service's state, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="plainsql-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def running_stack_in(
    folder: Path, workers: int, *options: str, tier: str = "dedicated", settings: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """A service with its state in a folder, which remains."""
    command = [sys.executable, "-m", "plainsql_server", "dev", "--dir", str(folder), "--tier", tier]
    command += ["--data-port=0", "--control-port=0", "--alias-port=0"]
    first_port = free_port()
    process = subprocess.Popen(
        [*command, "--workers", str(workers), *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "PLAINSQL_METRICS_PORT": str(first_port), **(settings or {})},
    )  # fmt: skip
    try:
        dev = _await_description(folder, process)
        yield described_stack(dev, range(first_port, first_port + workers))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(_STOP_LIMIT_S)


def _await_description(folder: Path, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    described = folder / "dev.json"
    end = time.monotonic() + _START_LIMIT_S
    while not described.exists():
        if process.poll() is not None or time.monotonic() > end:
            assert process.stderr is not None
            # Not killed: what it has started must end before its folder goes.
            process.send_signal(signal.SIGINT)
            process.wait(_STOP_LIMIT_S)
            raise SystemExit(f"plainsql-server dev did not start:\n{process.stderr.read().decode()}")
        time.sleep(0.05)
    description: dict[str, Any] = json.loads(described.read_text())
    return description


def described_stack(dev: Mapping[str, Any], metrics_ports: range) -> Stack:
    """The stack that `dev.json` describes."""
    postgres = dev["postgres"]
    stack = Stack(
        folder=Path(dev["api_key_file"]).parent,
        data_url=dev["data_url"],
        control_url=dev["control_url"],
        alias_url=dev["alias_url"],
        pids=dev["pids"],
        metrics_ports=metrics_ports,
        api_key=Path(dev["api_key_file"]).read_text().strip(),
        socket=postgres["socket"],
        port=postgres["port"],
        superuser=postgres["superuser"],
        database=postgres["database"],
        owner_role="",
    )
    return replace(stack, owner_role=_owner_role(stack))


def _owner_role(stack: Stack) -> str:
    # The tables must belong to the role that the service logs in as.
    return stack.psql("select nspowner::regrole from pg_namespace where nspname = 'public'")


def _fill(stack: Stack, scale: int) -> None:
    arguments = ["pgbench", *stack.engine_arguments(stack.owner_role), "-i", "-q", "-s", str(scale), stack.database]
    subprocess.run(arguments, check=True, capture_output=True, env={**os.environ, "PGOPTIONS": ""})
    stack.psql("checkpoint")
