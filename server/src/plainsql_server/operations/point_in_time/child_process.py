"""Child processes that end with this process, and run as the user `postgres` if this one is root."""

import asyncio
import ctypes
import os
import pwd
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Any

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.programs import find_program, program_environment

# PostgreSQL refuses to run as root. On a machine with a cell, its packages have made this user.
SYSTEM_USER = "postgres"
_OLDEST_MAJOR = 15
_END_S = 10.0
_LOG_KEPT = 8_000
_ERRORS = ("FATAL:", "PANIC:", "ERROR:")
_PR_SET_PDEATHSIG = 1


def identity() -> dict[str, Any]:
    """The options of a subprocess that name its user."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam(SYSTEM_USER)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def dying_with_this_process(how: signal.Signals) -> Any:
    """What a child runs first, so that the kernel sends it this signal when this process ends."""
    # Loaded before the fork, because the child should allocate as little as possible.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


async def end(process: Process, how: signal.Signals) -> None:
    """End a child, by SIGKILL if it ignores the signal."""
    if process.returncode is not None:
        return
    process.send_signal(how)
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        process.kill()
        await process.wait()


async def asked_locally(query: str, dsn: str) -> str:
    """What psql prints for a query, as the user who may log in locally. Raises RequestError if it fails."""
    process = await asyncio.create_subprocess_exec(
        find_program("psql", _OLDEST_MAJOR), "-XAt", "--no-password", "-c", query, dsn,
        stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=program_environment(), cwd="/", **identity(),
    )  # fmt: skip
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise RequestError("archive_failed", f"The cluster does not answer: {last_line(errors.decode())}")
    return output.decode().strip()


def last_line(output: str) -> str:
    """What a program said last, or the last of its errors."""
    lines = [line.strip() for line in output[-_LOG_KEPT:].splitlines() if line.strip()]
    errors = [line for line in lines if any(word in line for word in _ERRORS)]
    return (errors or lines or ["it said nothing"])[-1]
