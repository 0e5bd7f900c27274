"""Runs the real `dev` command as a process of its own, and finds what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

import plainsql_server
from server.tests.processes import wait_for

_READY_LIMIT_S = 60
STOP_LIMIT_S = 5
_LAST_WORDS = "Press Ctrl-C to stop everything."
_SOURCE = Path(plainsql_server.__file__).parents[1]
_PROGRAM = """
import json, sys
from pathlib import Path
from plainsql_server.dev.command import DevOptions, run
options = json.loads(sys.argv[1])
sys.exit(run(DevOptions(**{**options, "directory": Path(options["directory"])})))
"""


@dataclass
class Dev:
    """One run of `plainsql-server dev`."""

    directory: Path
    process: subprocess.Popen[bytes]
    output_file: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def output(self) -> str:
        return self.output_file.read_text()

    def description(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "dev.json").read_text()))

    def wait_ready(self) -> float:
        """Seconds until dev.json of this very run was there, and everything that a user reads had been printed."""
        wait_for(self._is_ready, _READY_LIMIT_S, lambda: f"not ready:\n{self.output}")
        return time.monotonic() - self.began

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stops it as a user would, within the promised time, and returns its exit code."""
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
    """Starts runs and ends those that a test leaves behind."""

    def __init__(self, outputs: Path) -> None:
        self._outputs = outputs
        self._runs: list[Dev] = []

    def __call__(
        self,
        directory: Path,
        *,
        user: int | None = None,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> Dev:
        output_file = self._outputs / f"{len(self._runs)}.txt"
        argument = json.dumps({"directory": str(directory), **options})
        with output_file.open("wb") as output:
            process = subprocess.Popen(
                [python, "-c", _PROGRAM, argument],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={**os.environ, "PYTHONPATH": _python_path(), **(environment or {})},
                **({} if user is None else {"user": user, "group": user, "extra_groups": []}),  # type: ignore[call-overload]
            )
        self._runs.append(Dev(directory, process, output_file))
        return self._runs[-1]

    def end_all(self) -> None:
        for run in self._runs:
            if run.process.poll() is None:
                run.process.terminate()
                run.process.wait(STOP_LIMIT_S * 2)


def _python_path() -> str:
    return os.pathsep.join([os.environ["PYTHONPATH"], str(_SOURCE)] if os.environ.get("PYTHONPATH") else [str(_SOURCE)])
