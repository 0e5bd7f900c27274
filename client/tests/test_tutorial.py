"""The tutorial, done as a reader would: its files saved, its changes made, its commands run, its output compared.

Three things differ. Nothing is installed, because the environment of this test has it all. `dev` runs in another
folder, to which `.plainsql` is a link, and the web service on a free port. An ellipsis on the page stands for anything.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import requires
from itertools import pairwise
from pathlib import Path

import pytest

from plainsql_server.dev.ports import free_port
from server.tests.processes import wait_for
from server.tests.service import Service, running_service

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs/tutorial.md"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_START_LIMIT_S = 120
ACTIVATE = ". .venv/bin/activate"
PORT = "8000"


class Reader:
    """A reader's home, and three terminals: the service runs in the first one."""

    def __init__(self, home: Path, service: Service) -> None:
        self.folder = home / "todo"
        self.folder.mkdir()
        (self.folder / ".plainsql").symlink_to(service.folder)
        (self.folder / ".venv/bin").mkdir(parents=True)
        (self.folder / ".venv/bin/activate").write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
        self._environment = {**kept, "HOME": str(home), "COLUMNS": "80"}
        # What was exported in the second terminal.
        self._exported = ""
        self._port = str(free_port())
        self._third: subprocess.Popen[bytes] | None = None

    def save(self, text: str) -> None:
        """A file whose name is in its first line."""
        name = text.splitlines()[0].removeprefix("# ")
        (self.folder / name).write_text(text)

    def change(self, text: str) -> None:
        header, *lines = text.splitlines(keepends=True)
        file = self.folder / header.removeprefix("--- ").strip()
        before = "".join(line[1:] for line in lines if line[0] in " -")
        assert file.read_text().count(before) == 1, before
        file.write_text(file.read_text().replace(before, "".join(line[1:] for line in lines if line[0] in " +")))

    def run(self, commands: str) -> str:
        """What the commands print in the second terminal."""
        done = subprocess.run(
            self._shell(f"{self._exported}{commands}"), cwd=self.folder, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        self._exported += "".join(f"{line}\n" for line in commands.splitlines() if line.startswith("export "))
        return done.stdout

    def serve(self, commands: str) -> None:
        """Starts the web service in the third terminal, where another one may run."""
        self.press_ctrl_c()
        log = self.folder / "web.log"
        with log.open("wb") as output:
            # A session of its own, so that a signal to its group is what Ctrl-C is in a terminal.
            self._third = subprocess.Popen(
                self._shell(commands), cwd=self.folder, env=self._environment, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        wait_for(self._is_reachable, _START_LIMIT_S, log.read_text)

    def press_ctrl_c(self) -> None:
        if self._third is not None:
            os.killpg(self._third.pid, signal.SIGINT)
            self._third.wait(_START_LIMIT_S)
            self._third = None

    def _is_reachable(self) -> bool:
        assert self._third is not None
        assert self._third.poll() is None, (self.folder / "web.log").read_text()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", int(self._port))) == 0

    def _shell(self, commands: str) -> list[str]:
        return ["bash", "-ec", f"{ACTIVATE}\n{commands.replace(PORT, self._port)}"]


@pytest.fixture
def reader() -> Iterator[Reader]:
    home = Path(tempfile.mkdtemp(prefix="tutorial-"))
    with running_service() as service:
        made = Reader(home, service)
        yield made
        made.press_ctrl_c()
    shutil.rmtree(home)


@pytest.mark.timeout(400)
def test_each_block_of_the_tutorial_does_what_it_shows(reader: Reader) -> None:
    blocks = _FENCED.findall(PAGE.read_text(encoding="utf-8"))
    (_, install), (_, start), *others = blocks
    check_installation(install)
    assert start == "plainsql-server dev\n"
    compared = 0
    for (language, text), (next_language, shown) in pairwise([*others, ("", "")]):
        if language == "python":
            reader.save(text)
        elif language == "diff":
            reader.change(text)
        elif "uvicorn" in text:
            reader.serve(text)
        elif language == "sh":
            printed = reader.run(text)
            if next_language == "text":
                assert re.fullmatch(pattern_of(shown), printed, re.DOTALL), f"{text}\n{printed}"
                compared += 1
    assert compared >= 8


def check_installation(text: str) -> None:
    """Everything that it installs is in this environment, also what the extras are for."""
    *_, line = text.splitlines()
    named = line.removeprefix("pip install ").replace("'", "").split()
    assert named == ["plainsql-server[dev]", "plainsql[asyncio]", "alembic", "fastapi", "uvicorn"]
    for name in named:
        assert requires(name.partition("[")[0]), name
    assert ACTIVATE in text


def pattern_of(shown: str) -> str:
    """What a page's output matches. A line with nothing but an ellipsis stands for any number of lines."""
    return "".join(".*" if line == "…" else _line_pattern(line) for line in shown.splitlines())


def _line_pattern(line: str) -> str:
    return re.escape(line).replace("…", "[^\n]*") + "\n"


@pytest.mark.unit
def test_an_ellipsis_stands_for_anything_and_nothing_else_is_passed_over() -> None:
    pattern = pattern_of("…\na …: b\n…\nend\n")
    assert re.fullmatch(pattern, "x\na 1: b\ny\nz\nend\n", re.DOTALL)
    assert re.fullmatch(pattern, "a : b\nend\n", re.DOTALL)
    assert not re.fullmatch(pattern, "a \n: b\nend\n", re.DOTALL)
    assert not re.fullmatch(pattern, "x\na 1: b\nend\nmore\n", re.DOTALL)
