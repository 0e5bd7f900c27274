"""Data-plane nodes beside a stack: processes of their own on its directory; and an alias before them.

Owns starting and stopping them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.stack import Stack
from plainsql_server.dev.alias import MISSING, find_nginx, nginx_command, write_config
from plainsql_server.dev.ports import free_port
from plainsql_server.operations.files.alias import Alias

_START_LIMIT_S = 60
_STOP_LIMIT_S = 20
# A cell of `plainsql-server dev` takes 190, for three nodes and the service's own processes. With fewer than a load
# needs at once, connections would be closed and opened all the time.
_CELL_CONNECTIONS = 44


@dataclass(frozen=True)
class BenchNode:
    """A running data plane of one process, and how long it took to be ready."""

    pid: int
    url: str
    started_s: float


def directory_dsn(stack: Stack) -> str:
    return f"host={stack.socket} port={stack.port} user={stack.superuser} dbname=plainsql_directory"


@contextmanager
def running_node(stack: Stack) -> Iterator[BenchNode]:
    """A node, which logs as always, to nowhere."""
    port, began_s = free_port(), time.monotonic()
    environment = {
        **os.environ, "PLAINSQL_DIRECTORY_DSN": directory_dsn(stack), "PLAINSQL_DATA_PORT": str(port),
        "PLAINSQL_CELL_MAX_CONNECTIONS": str(_CELL_CONNECTIONS),
        "PLAINSQL_SECRETS_KEYS_FILE": str(stack.secrets_keys_file),
    }  # fmt: skip
    command = [sys.executable, "-m", "plainsql_server", "data"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        _await_ready(process, url, began_s + _START_LIMIT_S)
        yield BenchNode(process.pid, url, time.monotonic() - began_s)
    finally:
        process.terminate()
        process.wait(_STOP_LIMIT_S)


@contextmanager
def running_alias(stack: Stack, nodes: Sequence[BenchNode]) -> Iterator[str]:
    """The URL of an nginx that sends each database's requests to one of the nodes, as in production."""
    program = find_nginx()
    if program is None:
        raise SystemExit(MISSING)
    address, upstreams = f"127.0.0.1:{free_port()}", [urlsplit(node.url).netloc for node in nodes]
    folder = Path(tempfile.mkdtemp(prefix="plainsql-bench-alias-"))
    write_config(folder, Alias([address], upstreams, stack.control_url))
    process = subprocess.Popen(nginx_command(program, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_ready(process, f"http://{address}", time.monotonic() + _START_LIMIT_S)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(_STOP_LIMIT_S)
        shutil.rmtree(folder)


def _await_ready(process: "subprocess.Popen[bytes]", url: str, end_s: float) -> None:
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).read()
            return
        except urllib.error.URLError:
            if process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit("a node or its alias did not start") from None
            time.sleep(0.02)
