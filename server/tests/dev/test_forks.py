"""A fork of `dev` is set up as a new process would be."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# A process with handlers, a wakeup descriptor and an open file, as `dev` has them, that forks and waits.
_PARENT = """
import json, os, signal, sys
from plainsql_server.dev.forks import fork
from plainsql_server.dev.signals import Signals

def describe():
    print(json.dumps({
        "environment": dict(os.environ), "folder": os.getcwd(), "leads": os.getsid(0) == os.getpid(),
        "input": os.readlink("/proc/self/fd/0"),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "handlers": [int(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)],
        "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "wakes": signal.set_wakeup_fd(-1), "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }), flush=True)

def end(how):
    describe()
    if how == "exit":
        sys.exit(4)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "error":
        raise ValueError("of the fork")
    return 3

sys.stdout.write("buffered ")
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with Signals(), open("/dev/zero") as held, open(sys.argv[1], "ab") as output:
    streams = (held.fileno(), output.fileno(), output.fileno())
    forked = fork(lambda: end(sys.argv[2]), environment={"ONLY": "this"}, streams=streams)
    print(forked.wait(), forked.returncode)
"""


def forked(output: Path, how: str) -> tuple[dict[str, Any], str, str]:
    """What a fork says about itself, what else it writes, and what its parent prints."""
    command = [sys.executable, "-c", _PARENT, str(output), how]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    first, _, rest = output.read_text().partition("\n")
    return json.loads(first), rest, ended.stdout


def test_a_fork_has_nothing_of_its_parent_but_the_code(tmp_path: Path) -> None:
    found, rest, printed = forked(tmp_path / "log", "return")
    assert found == {
        "environment": {"ONLY": "this"}, "folder": "/", "leads": True, "input": "/dev/zero", "descriptors": [0, 1, 2],
        # What the parent ignores stays ignored, as with nohup.
        "handlers": [signal.SIG_DFL, signal.SIG_DFL, signal.SIG_IGN],
        "interrupts": True, "wakes": -1, "blocked": 0,
    }  # fmt: skip
    assert (rest, printed) == ("", "buffered 3 3\n")


@pytest.mark.parametrize(("how", "code"), [("exit", 4), ("signal", -signal.SIGTERM), ("error", 1)])
def test_a_fork_ends_as_a_process_does(tmp_path: Path, how: str, code: int) -> None:
    _, rest, printed = forked(tmp_path / "log", how)
    assert printed == f"buffered {code} {code}\n"
    assert ("ValueError: of the fork" in rest) == (how == "error")
