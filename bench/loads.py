"""The load generators: pgbench for the bare engine, wrk for what speaks HTTP, all doing the same work.

Owns the workloads. Each is the same statement on every side, serializable on every side.
"""

import json
import math
import os
import re
import ssl
import subprocess
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.stack import Stack

ROWS_PER_SCALE = 100_000
SERIALIZABLE = "-c default_transaction_isolation=serializable"


@dataclass(frozen=True)
class Workload:
    """One statement with one random key; `{key}` stands where the key goes."""

    name: str
    sql: str
    # pgbench's query mode, which is the fair counterpart of how the service is asked.
    pgbench_mode: str
    with_parameter: bool
    writes: bool = False


_LOOKUP = "select abalance from pgbench_accounts where aid = {key}"
_UPDATE = "update pgbench_accounts set abalance = abalance + 1 where aid = {key}"
WORKLOADS = (
    Workload("lookup, $1", _LOOKUP, "prepared", True),
    Workload("lookup, literal", _LOOKUP, "extended", False),
    Workload("update, $1", _UPDATE, "prepared", True, writes=True),
)


@dataclass(frozen=True)
class Measured:
    """Statements per second, the median latency of one, and, where measured, the 99th percentile."""

    per_second: float
    median_us: float
    p99_us: float = math.nan


def pgbench(stack: Stack, workload: Workload, rows: int, clients: int, seconds: float) -> Measured:
    """Straight on the engine."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "load.sql"
        script.write_text(f"\\set key random(1, {rows})\n{workload.sql.format(key=':key')};\n")
        arguments = [
            "pgbench", *stack.engine_arguments(stack.owner_role), "-n", "-f", str(script), "-M", workload.pgbench_mode,
            "-c", str(clients), "-j", str(min(2, clients)), "-T", str(round(seconds)),
            *(["--log", "--log-prefix", f"{folder}/log"] if clients == 1 else []), stack.database,
        ]  # fmt: skip
        environment = {**os.environ, "PGOPTIONS": SERIALIZABLE}
        output = subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment).stdout
        latencies = [
            float(line.split()[2]) for log in Path(folder).glob("log*") for line in log.read_text().splitlines()
        ]
    mean_us = float(found(r"latency average = ([\d.]+) ms", output)) * 1000
    return Measured(float(found(r"tps = ([\d.]+)", output)), median(latencies) if latencies else mean_us)


def service(stack: Stack, workload: Workload, rows: int, connections: int, seconds: float) -> Measured:
    """Through PlainSQL."""
    headers = {"Authorization": f"Bearer {stack.api_key}", "Content-Type": "application/json"}
    if workload.with_parameter:
        body = json.dumps({"sql": workload.sql.format(key="$1"), "params": ["KEY"]}).replace('"KEY"', "%d")
    else:
        body = json.dumps({"sql": workload.sql.format(key="KEY")}).replace("KEY", "%d")
    url = f"{stack.data_url}/v1/query"
    check_one(url, headers, body % 1)
    return wrk(url, headers, _with_random_key(body, rows), connections, seconds)


def rqlite(url: str, workload: Workload, rows: int, connections: int, seconds: float) -> Measured:
    """Through rqlite."""
    if workload.with_parameter:
        body = json.dumps([[workload.sql.format(key="?"), "KEY"]]).replace('"KEY"', "%d")
    else:
        body = json.dumps([workload.sql.format(key="KEY")]).replace("KEY", "%d")
    path = "/db/execute" if workload.writes else "/db/query?level=none"
    headers = {"Content-Type": "application/json"}
    check_one(f"{url}{path}", headers, body % 1)
    return wrk(f"{url}{path}", headers, _with_random_key(body, rows), connections, seconds)


def check_one(url: str, headers: dict[str, str], body: str) -> None:
    """Refuses to measure failures: both services answer a failed statement with 200 as well."""
    request = urllib.request.Request(url, body.encode(), headers)
    # The certificate is the stack's own, made a moment ago; wrk does not look at it either.
    trusting = ssl._create_unverified_context() if url.startswith("https:") else None
    answer = urllib.request.urlopen(request, timeout=10, context=trusting).read().decode()
    if '"success":false' in answer or '"error"' in answer:
        raise SystemExit(f"{url} failed: {answer}")


def _with_random_key(body: str, rows: int) -> str:
    """wrk's expression for a body with `%d` in it."""
    return f"string.format([==[{body}]==], math.random(1, {rows}))"


def wrk(
    url: str, headers: dict[str, str], body: str, connections: int, seconds: float, *, prelude: str = "", head: str = ""
) -> Measured:
    """wrk's measure of posting a body, an expression in Lua that `prelude` may prepare with what `head` defines."""
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    request = f"request = function() {prelude} return wrk.format(nil, nil, nil, {body}) end"
    script_text = "\n".join(['wrk.method = "POST"', head, *lines, request])
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(script_text)
        script.flush()
        arguments = ["wrk", "--latency", "-t", "1", "-c", str(connections), "-d", f"{round(seconds)}s"]
        output = subprocess.run([*arguments, "-s", script.name, url], check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"{url} failed under load:\n{output}")
    per_second = float(found(r"Requests/sec:\s+([\d.]+)", output))
    return Measured(per_second, _share_us(output, 50), _share_us(output, 99))


def _share_us(output: str, percent: int) -> float:
    """How long so many of a hundred requests took at the most."""
    value, unit = re.findall(rf"{percent}%\s+([\d.]+)(us|ms|s)", output)[0]
    return float(value) * {"us": 1, "ms": 1_000, "s": 1_000_000}[unit]


def found(pattern: str, output: str) -> str:
    """What the pattern's group matches in a load generator's answer."""
    match = re.search(pattern, output)
    if match is None:
        raise SystemExit(f"cannot read the load generator's answer:\n{output}")
    return match[1]
