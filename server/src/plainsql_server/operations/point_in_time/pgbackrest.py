"""Runs pgBackRest on the archive of a cell.

    done = await run_pgbackrest(archive, "info", "--output=json")
    done.succeeded, done.output, done.errors

As the user `postgres`, and with the configuration of the archive's folder.
"""

import shutil
import signal
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.files.archive import STANZA
from plainsql_server.operations.point_in_time.child_process import dying_with_this_process, end, identity
from plainsql_server.operations.programs import program_environment


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of a cell: the folder of pgBackRest's configuration on this machine, and the name of the stanza."""

    config_folder: Path
    stanza: str = STANZA
    received: Path | None = None
    """A folder of WAL that was received and that the archive may lack (`received.py`)."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a run of pgBackRest ended."""

    succeeded: bool
    output: str
    errors: str
    """Its errors and warnings."""


async def run_pgbackrest(archive: Archive, *arguments: str, inherited: tuple[int, ...] = ()) -> Done:
    """Run it to its end; it gets the file descriptors `inherited`. It ends if this process does."""
    program = shutil.which("pgbackrest")
    if program is None:
        raise RequestError(
            "program_missing", "pgbackrest is not installed on this machine.", hint="Run `apt install pgbackrest`."
        )
    process = await create_subprocess_exec(
        program, f"--config-path={archive.config_folder}", f"--stanza={archive.stanza}",
        "--log-level-file=off", "--log-level-console=off", "--log-level-stderr=warn", *arguments,
        stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=program_environment(), cwd="/",
        pass_fds=inherited, preexec_fn=dying_with_this_process(signal.SIGKILL), **identity(),
    )  # fmt: skip
    try:
        output, errors = await process.communicate()
    finally:
        await end(process, signal.SIGTERM)
    return Done(process.returncode == 0, output.decode(errors="replace"), _errors(process.returncode, errors))


def _errors(exit_code: int | None, errors: bytes) -> str:
    """Its errors. A program that is killed says nothing."""
    text = errors.decode(errors="replace")
    if exit_code is None or exit_code >= 0:
        return text
    return f"{text}\nERROR: it was ended by {signal.Signals(-exit_code).name}"
