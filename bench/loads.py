"""The load generators: pgbench for the bare engine, wrk for the service, both doing the same work.

Owns the workloads. Each is the same statement on both sides, serializable on both sides.
"""

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.stack import Stack

ROWS_PER_SCALE = 100_000
_SERIALIZABLE = "-c default_transaction_isolation=serializable"


@dataclass(frozen=True)
class Workload:
    """One statement with one random key; `{key}` stands where the key goes."""

    name: str
    sql: str
    # pgbench's query mode, which is the fair counterpart of how the service is asked.
    pgbench_mode: str
    with_parameter: bool


WORKLOADS = (
    Workload("lookup, $1", "select abalance from pgbench_accounts where aid = {key}", "prepared", True),
    Workload("lookup, literal", "select abalance from pgbench_accounts where aid = {key}", "extended", False),
    Workload("update, $1", "update pgbench_accounts set abalance = abalance + 1 where aid = {key}", "prepared", True),
)


def pgbench_rate(stack: Stack, workload: Workload, rows: int, clients: int, seconds: float) -> float:
    """Statements per second straight on the engine."""
    script = f"\\set key random(1, {rows})\n{workload.sql.format(key=':key')};\n"
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        arguments = [
            "pgbench", *stack.engine_arguments(stack.owner_role), "-n", "-f", file.name, "-M", workload.pgbench_mode,
            "-c", str(clients), "-j", "2", "-T", str(round(seconds)), stack.database,
        ]  # fmt: skip
        environment = {**os.environ, "PGOPTIONS": _SERIALIZABLE}
        output = subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment).stdout
    return float(_found(r"tps = ([\d.]+)", output))


def wrk_rate(stack: Stack, workload: Workload, rows: int, connections: int, seconds: float) -> float:
    """Statements per second through the service. Refuses to count answers that are not 200."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "load.lua"
        script.write_text(_wrk_script(stack, workload, rows))
        arguments = [
            "wrk", "-t", "1", "-c", str(connections), "-d", f"{round(seconds)}s", "-s", str(script),
            f"{stack.data_url}/v1/query",
        ]  # fmt: skip
        output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"the service failed under load:\n{output}")
    return float(_found(r"Requests/sec:\s+([\d.]+)", output))


def _wrk_script(stack: Stack, workload: Workload, rows: int) -> str:
    if workload.with_parameter:
        body = json.dumps({"sql": workload.sql.format(key="$1"), "params": ["KEY"]}).replace('"KEY"', "%d")
    else:
        body = json.dumps({"sql": workload.sql.format(key="KEY")}).replace("KEY", "%d")
    return f"""
wrk.method = "POST"
wrk.headers["Authorization"] = "Bearer {stack.api_key}"
wrk.headers["Content-Type"] = "application/json"
local body = [[{body}]]
request = function()
    return wrk.format(nil, nil, nil, string.format(body, math.random(1, {rows})))
end
"""


def _found(pattern: str, output: str) -> str:
    match = re.search(pattern, output)
    if match is None:
        raise SystemExit(f"cannot read the load generator's answer:\n{output}")
    return match[1]
