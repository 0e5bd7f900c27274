"""What a cell with many databases takes to be checked, backed up and started again, for `python -m bench databases`.

    show(stack)
    show_start(began_s, stack, tenant)

`doctor` and `backups` run as an operator runs them, with the settings in the service's operator.env.
"""

import json
import subprocess
import sys
import tempfile
import time

from bench.loads import check_one
from bench.stack import Stack
from bench.tenants import SQL, Tenant

_OPERATE = '. "$0" && exec "$@"'


def show(stack: Stack, limit_s: float = 600.0) -> None:
    """Prints how long `doctor` and `backups` take, and the last line of each. Backups end at the limit."""
    _show_command(stack, limit_s, "doctor")
    with tempfile.TemporaryDirectory() as folder:
        _show_command(stack, limit_s, "backups", "--to", folder)


def show_start(began_s: float, stack: Stack, tenant: Tenant) -> None:
    """Prints how long the service took to start, and to answer a customer, since `began_s` of the monotonic clock."""
    started_s = time.monotonic() - began_s
    check_one(f"{stack.data_url}/v1/query", tenant.headers, json.dumps({"sql": SQL, "params": [1_000]}))
    print(
        f"start: ready after {started_s:.1f} s, the first answer after {time.monotonic() - began_s:.1f} s", flush=True
    )


def _show_command(stack: Stack, limit_s: float, command: str, *arguments: str) -> None:
    script = ["sh", "-c", _OPERATE, str(stack.folder / "operator.env")]
    began_s = time.monotonic()
    process = subprocess.Popen(
        [*script, sys.executable, "-m", "plainsql_server", command, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        lines = process.communicate(timeout=limit_s)[0].splitlines()
        last = lines[-1].strip()
    except subprocess.TimeoutExpired:
        process.terminate()
        lines = process.communicate()[0].splitlines()
        last = f"ended at the limit, after {len(lines):,} lines"
    taken_s = time.monotonic() - began_s
    # The exit code of `doctor` says that something is broken, so it's shown what.
    broken = "".join(f"\n  {line}" for line in lines if line.startswith("XX"))
    print(f"{command}: {taken_s:.1f} s: {last}{broken}", flush=True)
