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


def show(stack: Stack) -> None:
    """Prints how long `doctor` and `backups` take, and the last line of each."""
    _show_command(stack, "doctor")
    with tempfile.TemporaryDirectory() as folder:
        _show_command(stack, "backups", "--to", folder)


def show_start(began_s: float, stack: Stack, tenant: Tenant) -> None:
    """Prints how long the service took to start, and to answer a customer, since `began_s` of the monotonic clock."""
    started_s = time.monotonic() - began_s
    check_one(f"{stack.data_url}/v1/query", tenant.headers, json.dumps({"sql": SQL, "params": [1_000]}))
    print(
        f"start: ready after {started_s:.1f} s, the first answer after {time.monotonic() - began_s:.1f} s", flush=True
    )


def _show_command(stack: Stack, command: str, *arguments: str) -> None:
    script = ["sh", "-c", _OPERATE, str(stack.folder / "operator.env")]
    began_s = time.monotonic()
    run = subprocess.run(
        [*script, sys.executable, "-m", "plainsql_server", command, *arguments],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    taken_s = time.monotonic() - began_s
    print(f"{command}: {taken_s:.1f} s: {run.stdout.splitlines()[-1].strip()}", flush=True)
