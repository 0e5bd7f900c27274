"""pgbench's own five-statement transaction (TPC-B like) on every side, serializable on every side.

Owns that workload. Conflicts are tried again on every side: by pgbench (`--max-tries`), by PlainSQL for its
callers; rqlite has one writer and no conflicts.
"""

import json
import os
import subprocess

from bench.loads import SERIALIZABLE, Measured, check_one, found, wrk
from bench.stack import Stack

NAME = "TPC-B transaction"
# What the service sets for every connection, so that the cost of our settings and our own cost can be separated.
PLANNER = "-c random_page_cost=1.1 -c cpu_tuple_cost=0.03"
_TRIES = 100
_STATEMENTS = (
    ("update pgbench_accounts set abalance = abalance + {} where aid = {}", "delta", "aid"),
    ("select abalance from pgbench_accounts where aid = {}", "aid"),
    ("update pgbench_tellers set tbalance = tbalance + {} where tid = {}", "delta", "tid"),
    ("update pgbench_branches set bbalance = bbalance + {} where bid = {}", "delta", "bid"),
    (
        "insert into pgbench_history (tid, bid, aid, delta, mtime) values ({}, {}, {}, {}, current_timestamp)",
        "tid", "bid", "aid", "delta",
    ),
)  # fmt: skip


def pgbench(stack: Stack, clients: int, seconds: float, settings: str = "") -> Measured:
    """Straight on the engine, as it is or with settings of ours."""
    arguments = [
        "pgbench", *stack.engine_arguments(stack.owner_role), "-n", "-b", "tpcb-like", "-M", "prepared",
        "--max-tries", str(_TRIES), "-c", str(clients), "-j", str(min(2, clients)), "-T", str(round(seconds)),
        stack.database,
    ]  # fmt: skip
    environment = {**os.environ, "PGOPTIONS": f"{SERIALIZABLE} {settings}"}
    output = subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment).stdout
    mean_us = float(found(r"latency average = ([\d.]+) ms", output)) * 1000
    return Measured(float(found(r"tps = ([\d.]+)", output)), mean_us)


def service(stack: Stack, scale: int, connections: int, seconds: float) -> Measured:
    """Through PlainSQL, as one request."""
    statements = [
        {"sql": sql.format(*(f"${at + 1}" for at in range(len(names)))), "params": [f"<{name}>" for name in names]}
        for sql, *names in _STATEMENTS
    ]
    headers = {"Authorization": f"Bearer {stack.api_key}", "Content-Type": "application/json"}
    return _load(f"{stack.data_url}/v1/transaction", headers, {"statements": statements}, (scale, connections, seconds))


def rqlite(url: str, scale: int, connections: int, seconds: float) -> Measured:
    """Through rqlite, as one request."""
    statements = [[sql.format(*("?" for _ in names)), *(f"<{name}>" for name in names)] for sql, *names in _STATEMENTS]
    headers = {"Content-Type": "application/json"}
    return _load(f"{url}/db/request?transaction", headers, statements, (scale, connections, seconds))


def _load(url: str, headers: dict[str, str], body: object, size: tuple[int, int, float]) -> Measured:
    scale, connections, seconds = size
    text, names = _as_format(json.dumps(body))
    values = {"aid": scale * 100_000, "tid": scale * 10, "bid": scale}
    check_one(url, headers, text % tuple(1 for _ in names))
    # One draw of each for the whole transaction, as pgbench does.
    draws = [f"local {name} = math.random(1, {most})" for name, most in values.items()]
    prelude = "; ".join([*draws, "local delta = math.random(-5000, 5000)"])
    return wrk(
        url, headers, f"string.format([==[{text}]==], {', '.join(names)})", connections, seconds, prelude=prelude
    )


def _as_format(body: str) -> tuple[str, list[str]]:
    """The body with `%d` for each placeholder, and the placeholders' names in order."""
    names: list[str] = []
    segments = body.split('"<')
    text = segments[0]
    for segment in segments[1:]:
        name, _, rest = segment.partition('>"')
        names.append(name)
        text += "%d" + rest
    return text, names
