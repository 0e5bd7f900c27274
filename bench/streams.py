"""Streams: rows per second of one large result, beside psql, which reads the same statement from the same engine.

Owns the statement and both readers. Ours counts bytes and nothing else, as psql's output goes nowhere.
"""

import json
import subprocess
import time
import urllib.request

from bench.report import Line, print_line
from bench.stack import Stack

FORMATS = {"events": "text/event-stream", "NDJSON": "application/x-ndjson", "CSV": "text/csv"}
_STATEMENT = "select aid, bid, abalance, filler from pgbench_accounts"
_CHUNK_BYTES = 1 << 18


def measure(stack: Stack, rows: int, rounds: int) -> list[Line]:
    """Every format beside psql, round by round."""
    lines = []
    for stream_format in FORMATS:
        line = Line(f"stream, {stream_format}", "rows")
        for _ in range(rounds):
            line.add("psql", psql(stack, rows))
            line.add("PlainSQL", service(stack, rows, stream_format))
        print_line(line)
        lines.append(line)
    return lines


def psql(stack: Stack, rows: int) -> float:
    """Rows per second straight from the engine."""
    command = ["psql", *stack.engine_arguments(stack.owner_role), "-qAtX", "-o", "/dev/null", "-d", stack.database]
    began_s = time.perf_counter()
    subprocess.run([*command, "-c", _STATEMENT], check=True)
    return rows / (time.perf_counter() - began_s)


def service(stack: Stack, rows: int, stream_format: str) -> float:
    """Rows per second through PlainSQL. Refuses to measure a stream that did not come to its end."""
    headers = {**stack.headers, "Accept": FORMATS[stream_format]}
    request = urllib.request.Request(f"{stack.data_url}/v1/query", json.dumps({"sql": _STATEMENT}).encode(), headers)
    began_s = time.perf_counter()
    last = b""
    with urllib.request.urlopen(request, timeout=600) as response:
        while chunk := response.read1(_CHUNK_BYTES):
            last = (last + chunk)[-500:]
    took_s = time.perf_counter() - began_s
    if stream_format != "CSV" and b'"row_count":%d' % rows not in last:
        raise SystemExit(f"the stream failed: {last.decode()}")
    return rows / took_s
