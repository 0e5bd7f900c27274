"""The load generators: pgbench for the bare engine, wrk for what speaks HTTP, all doing the same work."""

import json
import math
import os
import re
import signal
import ssl
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from statistics import median

from bench.stack import Stack
from bench.workloads import Post, Workload, number_ranges

_SERIALIZABLE = "-c default_transaction_isolation=serializable"
_TRIES = 100
# A parameter, which is a number and no string; or a number in the text of a statement.
_NUMBER = re.compile(r'"<(\w+)>"|<(\w+)>')
# wrk calls slower requests errors. Transactions that conflict are tried again, which may take seconds.
_TIMEOUT = ("--timeout", "60s")
# Making a database may have to wait for a checkpoint.
_ONE_LIMIT_S = 60
# Longer than any load takes.
_NEVER_MS = 3_600_000
# How long wrk may take to end after a signal that it has seen.
_AGAIN_S = 0.5


@dataclass(frozen=True)
class Measured:
    """Statements per second, the median latency of one, and, where measured, the 99th percentile and how many."""

    per_second: float
    median_us: float
    p99_us: float = math.nan
    requests: int = 0


def pgbench(stack: Stack, workload: Workload, scale: int, clients: int, seconds: float) -> Measured:
    """Straight on the engine."""
    draws = [f"\\set {name} random({low}, {high})\n" for name, (low, high) in number_ranges(scale).items()]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "load.sql"
        script.write_text("".join(draw for draw in draws if f":{draw.split()[1]}" in workload.script) + workload.script)
        arguments = [
            "pgbench", *stack.engine_arguments(stack.owner_role), "-n", "-f", str(script), "-M", workload.mode,
            "--max-tries", str(_TRIES), "-c", str(clients), "-j", str(min(2, clients)), "-T", str(round(seconds)),
            *(["--log", "--log-prefix", f"{folder}/log"] if clients == 1 else []), stack.database,
        ]  # fmt: skip
        environment = {**os.environ, "PGOPTIONS": f"{_SERIALIZABLE} {workload.options}"}
        output = subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment).stdout
        latencies = [
            float(line.split()[2]) for log in Path(folder).glob("log*") for line in log.read_text().splitlines()
        ]
    mean_us = float(_found(r"latency average = ([\d.]+) ms", output)) * 1000
    return Measured(float(_found(r"tps = ([\d.]+)", output)), median(latencies) if latencies else mean_us)


def service(
    stack: Stack, workload: Workload, scale: int, connections: int, seconds: float, *, at_most: int | None = None
) -> Measured:
    """Through PlainSQL."""
    return posts(stack.data_url, stack.headers, workload.service, connections, seconds, scale=scale, at_most=at_most)


def rqlite(url: str, workload: Workload, scale: int, connections: int, seconds: float) -> Measured:
    """Through rqlite."""
    return posts(url, {"Content-Type": "application/json"}, workload.rqlite, connections, seconds, scale=scale)


def posts(
    url: str,
    headers: Mapping[str, str],
    post: Post,
    connections: int,
    seconds: float,
    *,
    scale: int,
    at_most: int | None = None,
) -> Measured:
    """The same request again and again, each with numbers of its own."""
    text = json.dumps(post.body)
    names = [parameter or literal for parameter, literal in _NUMBER.findall(text)]
    template = _NUMBER.sub("%d", text)
    check_one(f"{url}{post.path}", headers, template % tuple(1 for _ in names))
    ranges = number_ranges(scale)
    # One draw of each for the whole request, as pgbench does.
    draws = "; ".join(f"local {name} = math.random({ranges[name][0]}, {ranges[name][1]})" for name in sorted({*names}))
    body = f"string.format([==[{template}]==], {', '.join(names)})"
    return wrk(f"{url}{post.path}", headers, body, connections, seconds, prelude=draws, at_most=at_most)


def check_one(url: str, headers: Mapping[str, str], body: str) -> HTTPMessage:
    """Refuses to measure failures: both services answer a failed statement with 200 as well. Returns the headers."""
    request = urllib.request.Request(url, body.encode(), dict(headers))
    # The certificate is the stack's own, made a moment ago; wrk does not look at it either.
    trusting = ssl._create_unverified_context() if url.startswith("https:") else None
    with urllib.request.urlopen(request, timeout=_ONE_LIMIT_S, context=trusting) as response:
        answer = response.read().decode()
        received: HTTPMessage = response.headers
    if '"success":false' in answer or '"error"' in answer:
        raise SystemExit(f"{url} failed: {answer}")
    return received


def wrk(
    url: str,
    headers: Mapping[str, str],
    body: str,
    connections: int,
    seconds: float,
    *,
    prelude: str = "",
    head: str = "",
    at_most: int | None = None,
) -> Measured:
    """wrk's measure of posting a body, an expression in Lua that `prelude` may prepare with what `head` defines.

    After `at_most` requests it ends, however many seconds are left.
    """
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    request = f"request = function() {prelude} return wrk.format(nil, nil, nil, {body}) end"
    script = "\n".join(['wrk.method = "POST"', head, *lines, request])
    return run_wrk(url, script, connections, seconds, at_most=at_most)


def run_wrk(url: str, lua: str, connections: int, seconds: float, *, at_most: int | None = None) -> Measured:
    """wrk's measure of what a script in Lua requests. After `at_most` requests it ends."""
    ending = [] if at_most is None else [_end_after(at_most, connections)]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write("\n".join([lua, *ending]))
        script.flush()
        arguments = ["wrk", "--latency", "-t", "1", "-c", str(connections), "-d", f"{round(seconds)}s", *_TIMEOUT]
        output = _run([*arguments, "-s", script.name, url], ends_itself=at_most is None)
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"{url} failed under load:\n{output}")
    per_second = float(_found(r"Requests/sec:\s+([\d.]+)", output))
    requests = int(_found(r"(\d+) requests in", output))
    return Measured(per_second, _share_us(output, 50), _share_us(output, 99), requests)


@contextmanager
def running_wrk(url: str, lua: str, connections: int) -> Iterator[list[float]]:
    """wrk for the length of the block. Afterwards, the list has its requests per second, those refused included."""
    rates: list[float] = []
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(lua)
        script.flush()
        arguments = ["wrk", "-t", "1", "-c", str(connections), "-d", f"{_NEVER_MS // 1000}s", *_TIMEOUT]
        process = subprocess.Popen([*arguments, "-s", script.name, url], stdout=subprocess.PIPE, text=True)
        try:
            yield rates
        finally:
            _interrupt(process)
            output, _ = process.communicate()
    rates.append(float(_found(r"Requests/sec:\s+([\d.]+)", output)))


def _end_after(requests: int, connections: int) -> str:
    """Lua that lets wrk send no more than so many requests, and write a line when all of them are answered.

    wrk asks each connection for a delay at its start and after each answer.
    """
    return f"""
local asked = 0
function delay()
  asked = asked + 1
  if asked == {requests + connections} then io.stderr:write("answered\\n") end
  return asked > {requests} and {_NEVER_MS} or 0
end
"""


def _run(command: list[str], *, ends_itself: bool) -> str:
    """What a load generator prints. One that does not end itself ends after the line that it writes when it is done."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    if not ends_itself:
        process.stderr.readline()
        _interrupt(process)
    output, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{output}{errors}")
    return output


def _interrupt(process: "subprocess.Popen[str]") -> None:
    """Ends wrk, which prints little. It ignores the signal until its threads run, and misses it until it sleeps."""
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_AGAIN_S)


def _share_us(output: str, percent: int) -> float:
    """How long so many of a hundred requests took at the most."""
    value, unit = re.findall(rf"{percent}%\s+([\d.]+)(us|ms|s)", output)[0]
    return float(value) * {"us": 1, "ms": 1_000, "s": 1_000_000}[unit]


def _found(pattern: str, output: str) -> str:
    """What the pattern's group matches in a load generator's answer."""
    match = re.search(pattern, output)
    if match is None:
        raise SystemExit(f"cannot read the load generator's answer:\n{output}")
    return match[1]
