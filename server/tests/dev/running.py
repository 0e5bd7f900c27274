"""Runs the real `dev` command as a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import psycopg

from server.tests import forks
from server.tests.processes import wait_for

_READY_LIMIT_S = 60
# On a busy machine; `test_start.py` measures the promised time.
STOP_LIMIT_S = 60
_LAST_WORDS = "Press Ctrl-C to stop everything."


@dataclass
class Dev:
    """One run of `plainsql-server dev`."""

    directory: Path
    process: forks.Process
    output_file: Path

    @property
    def output(self) -> str:
        return self.output_file.read_text()

    def description(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "dev.json").read_text()))

    def wait_ready(self) -> None:
        """Waits until dev.json of this very run is there, and everything that a user reads has been printed."""
        wait_for(self._is_ready, _READY_LIMIT_S, lambda: f"not ready:\n{self.output}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stops it as a user would, and returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_LIMIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """The exit code of a run that ends by itself."""
        return self.process.wait(_READY_LIMIT_S)

    def connect(self) -> psycopg.Connection[Any]:
        """The default database, as the local superuser, by what dev.json says."""
        engine = self.description()["postgres"]
        return psycopg.connect(
            host=engine["socket"], port=engine["port"], user=engine["superuser"], dbname=engine["database"]
        )

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"ended by itself:\n{self.output}"
        try:
            is_this_run = bool(self.description()["pids"]["dev"] == self.process.pid)
        except FileNotFoundError:
            return False
        # dev.json comes first.
        return is_this_run and _LAST_WORDS in self.output


class Starter:
    """Starts runs and ends those that a test leaves behind.

    A run is a fork of a process that has imported the service, unless it must be a new process.
    """

    def __init__(self, outputs: Path) -> None:
        self._outputs = outputs
        self._runs: list[Dev] = []

    def __call__(
        self,
        directory: Path,
        *,
        in_new_process: bool = False,
        environment: dict[str, str] | None = None,
        output_mode: int = 0o600,
        **options: Any,
    ) -> Dev:
        """In an output that others may read, there is no link that signs one in to the console."""
        start = _start_new if in_new_process else forks.start
        return self._started(directory, partial(start, folder=Path("/")), environment, options, output_mode)

    def as_user(self, directory: Path, user: int, python: str, environment: dict[str, str]) -> Dev:
        """Starts it as another user, who may need another Python."""
        start = partial(_start_new, folder=Path("/"), python=python, user=user)
        return self._started(directory, start, environment, {})

    def _started(
        self,
        directory: Path,
        start: Callable[[list[str], dict[str, str], IO[bytes]], forks.Process],
        environment: dict[str, str] | None,
        options: dict[str, Any],
        output_mode: int = 0o600,
    ) -> Dev:
        output_file = self._outputs / f"{len(self._runs)}.txt"
        output_file.touch(output_mode)
        with output_file.open("wb") as output:
            arguments = ["dev", "--dir", str(directory), *_flags(options)]
            process = start(arguments, {**os.environ, **(environment or {})}, output)
        self._runs.append(Dev(directory, process, output_file))
        return self._runs[-1]

    def end_all(self) -> None:
        for run in self._runs:
            if run.process.poll() is None:
                run.process.send_signal(signal.SIGTERM)
                run.process.wait(STOP_LIMIT_S * 2)


def _start_new(
    arguments: list[str],
    environment: dict[str, str],
    output: IO[bytes],
    *,
    folder: Path,
    python: str = sys.executable,
    user: int | None = None,
) -> forks.Process:
    return subprocess.Popen(
        [python, "-m", "plainsql_server", *arguments],
        stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=folder,
        user=user, group=user, extra_groups=None if user is None else [],
    )  # fmt: skip


def _flags(options: dict[str, Any]) -> list[str]:
    """The options of the command: `data_port=1` is `--data-port=1`, and `no_tls=True` is `--no-tls`.

    Ports are free ones unless they are given. None leaves the choice to the command, whose usual ports other runs on
    this machine may want as well: a test that passes it has written `ports.json` first.
    """
    options = {"data_port": 0, "control_port": 0, "alias_port": 0, **options}
    flags = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
    return [flag if value is True else f"{flag}={value}" for flag, value in flags.items()]
