"""Runs the operator's programs between a backup and its file, such as `zstd | age -r …`.

    commands = parse_pipeline("zstd -q | age -r age1…")
    with writing_through(commands, file) as stream:
        ...

Each program reads standard input and writes standard output. No shell is used, so the exit code of every program
counts, not only that of the last one. The programs don't get the service's settings.
"""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, BinaryIO, cast

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.programs import program_environment

# What a shell would act on. Here it would be passed to the program as an argument.
_SHELL_ONLY = frozenset(["||", "&&", "&", ";", ">", ">>", "<", "<<", "2>", "2>&1"])
_SHOWN = 400
_END_S = 5.0
_TAIL_BYTES = 1 << 16

Commands = Sequence[Sequence[str]]


def parse_pipeline(text: str) -> list[list[str]]:
    """Split a pipeline into programs and their arguments. Raises ValueError; the message says what is wrong."""
    commands: list[list[str]] = [[]]
    for word in shlex.split(text):
        if word in _SHELL_ONLY:
            raise ValueError(f"{word!r} needs a shell, which is not used. Put it into a script.")
        if word == "|":
            commands.append([])
        else:
            commands[-1].append(word)
    if not all(commands):
        raise ValueError("a program is missing before or after '|'")
    return commands


@contextmanager
def writing_through(commands: Commands, output: BinaryIO) -> Iterator[BinaryIO]:
    """Yield a stream whose content passes through the programs into a file. Without programs, that is the file.

    Raises RequestError if a program fails. If the block fails, the programs are terminated.
    """
    if not commands:
        yield output
        return
    with _started(commands, None, output) as running:
        stdin = running.processes[0].stdin
        assert stdin is not None
        try:
            yield cast("BinaryIO", stdin)
            stdin.close()
        except BrokenPipeError:
            # A program ended early. Its exit code and its message say why.
            running.check()
            raise RequestError("pipe_failed", "The pipe ended before it had read the whole backup.") from None
        running.check()


@contextmanager
def reading_through(commands: Commands, source: BinaryIO) -> Iterator[BinaryIO]:
    """Yield a stream with what the programs make of a file. Without programs, that is the file.

    Reading the end of the stream raises RequestError if a program failed.
    """
    if not commands:
        yield source
        return
    with _started(commands, source, None) as running:
        yield cast("BinaryIO", _CheckedAtEnd(running))


class _CheckedAtEnd:
    """The output of the last program. Its end counts only if every program succeeded."""

    def __init__(self, running: "_Running") -> None:
        self._running = running
        stdout = running.processes[-1].stdout
        assert stdout is not None
        self._stream = stdout

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        if size != 0 and not content:
            self._running.check()
        return content


class _Running:
    """The programs of a pipeline, and the files that receive their messages."""

    def __init__(self, commands: Commands, messages: Sequence[IO[bytes]]) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._commands = commands
        self._messages = messages

    def start(self, command: Sequence[str], stdin: IO[bytes] | int, stdout: IO[bytes] | int) -> None:
        """Start the next program. Raises RequestError if it can't be started."""
        stderr, environment = self._messages[len(self.processes)], program_environment()
        try:
            process = subprocess.Popen(list(command), stdin=stdin, stdout=stdout, stderr=stderr, env=environment)
        except OSError as error:
            raise RequestError("pipe_failed", f"{command[0]} can't be started: {error.strerror}.") from error
        self.processes.append(process)

    def check(self) -> None:
        """Wait for all programs. Raises RequestError if one of them failed."""
        failed = [
            f"{command[0]} ended with exit code {process.returncode}{_shown(messages)}"
            for command, process, messages in zip(self._commands, self.processes, self._messages, strict=True)
            if process.wait() != 0
        ]
        if failed:
            raise RequestError("pipe_failed", f"The pipe failed: {'; '.join(failed)}.")

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    # What is still buffered can't be written any more.
                    with suppress(BrokenPipeError):
                        stream.close()


@contextmanager
def _started(commands: Commands, source: BinaryIO | None, output: BinaryIO | None) -> Iterator[_Running]:
    with ExitStack() as stack:
        running = _Running(commands, [stack.enter_context(tempfile.TemporaryFile()) for _ in commands])
        stack.callback(running.end)
        before: IO[bytes] | int = subprocess.PIPE if source is None else source
        for number, command in enumerate(commands):
            after = output if output is not None and number == len(commands) - 1 else subprocess.PIPE
            running.start(command, before, after)
            if number and not isinstance(before, int):
                # Only the next program may hold it, so that this one notices when that one ends.
                before.close()
            before = cast("IO[bytes]", running.processes[-1].stdout)
        yield running


def _shown(messages: IO[bytes]) -> str:
    end = messages.seek(0, os.SEEK_END)
    messages.seek(max(0, end - _TAIL_BYTES))
    text = messages.read().decode(errors="replace")
    shown = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return f": {shown[-_SHOWN:]}" if shown else ""
