"""The README's five minutes, run as a new user would: its own commands, in its own order, in two terminals.

Two things differ from a user's run. The ports in the README are replaced by free ones, so that a service that runs
here already is not in the way. And `make setup` is not run again, because it made the environment that this test
runs in; that the gate runs it is checked instead.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from plainsql_server.dev.ports import choose_ports

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PORTS = ("8400", "8401")
# A loaded machine may take longer than the seconds that the README speaks of.
_START_LIMIT_S = 60
_STOP_LIMIT_S = 10

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def blocks(heading: str) -> list[tuple[str, str]]:
    """The fenced blocks of one section of the README, as (language, text)."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [(match[1], match[2]) for match in _FENCED.finditer(section)]


def shown_answers(path: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    """Each block of commands that is followed by an answer, with that answer."""
    return [(before, json.loads(text)) for (_, before), (language, text) in pairwise(path) if language == "json"]


_CHANCE = frozenset(["timings", "request_id", "id", "key_id", "token", "created_at", "expires_at"])
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def without_chance(answer: Any) -> Any:
    """The answer with what differs from run to run replaced by its kind."""
    if isinstance(answer, list):
        return [without_chance(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    return {name: _kind(value) if name in _CHANCE else without_chance(value) for name, value in answer.items()}


def _kind(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: type(each).__name__ for name, each in value.items()}
    if isinstance(value, str):
        return "a time" if _TIME.fullmatch(value) else value[:4]
    return value


class Tour:
    """The user's two terminals: one where the service runs, one where questions are asked."""

    def __init__(self, home: Path, install: str, start: str, prepare: str) -> None:
        self._ports = [str(port) for port in choose_ports({"data": 0, "control": 0}).values()]
        self._home = home
        self._activate = install.splitlines()[-1]
        self._prepare = prepare
        self.state = home / "plainsql-tour" / ".plainsql"
        self.output_file = home / "first-terminal"
        with self.output_file.open("wb") as output:
            # A session of its own, so that a signal to its group is what Ctrl-C is in a terminal.
            self.first_terminal = subprocess.Popen(
                self._shell(f"{self._activate}\n{start}"),
                cwd=ROOT, env=self._environment(), stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self.output_file.read_text()

    def wait_ready(self) -> None:
        until = time.monotonic() + _START_LIMIT_S
        while "\nReady in " not in self.output:
            assert self.first_terminal.poll() is None, self.output
            assert time.monotonic() < until, self.output
            time.sleep(0.05)

    def answer(self, commands: str) -> dict[str, Any]:
        """What the last of these commands prints in the second terminal."""
        done = subprocess.run(
            self._shell(f"{self._activate}\n{self._prepare}\n{commands}"),
            cwd=ROOT, env=self._environment(), capture_output=True, text=True, timeout=_START_LIMIT_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return last

    def press_ctrl_c(self) -> None:
        os.killpg(self.first_terminal.pid, signal.SIGINT)
        self.first_terminal.wait(_STOP_LIMIT_S)

    def end(self) -> None:
        if self.first_terminal.poll() is None:
            self.press_ctrl_c()

    def _shell(self, commands: str) -> list[str]:
        free = dict(zip(PORTS, self._ports, strict=True))
        return ["bash", "-e", "-c", re.sub("|".join(PORTS), lambda match: free[match[0]], commands)]

    def _environment(self) -> dict[str, str]:
        # A new user has none of our settings, and a home of their own.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
        return {**kept, "HOME": str(self._home)}


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty home folder that PostgreSQL's user may enter."""
    path = Path(tempfile.mkdtemp(prefix="readme-test-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def tour(home: Path) -> Iterator[Tour]:
    install, start, prepare = [text for language, text in blocks("Quick start") if language == "sh"][:3]
    begun = Tour(home, install, start, prepare)
    yield begun
    begun.end()


def test_every_command_of_the_five_minutes_gives_the_answer_that_the_readme_shows(tour: Tour) -> None:
    tour.wait_ready()
    expected = shown_answers(blocks("Quick start"))
    assert len(expected) == 6
    for commands, shown in expected:
        assert without_chance(tour.answer(commands)) == without_chance(shown), commands
    tour.press_ctrl_c()
    assert tour.first_terminal.returncode == 0, tour.output
    assert "Stopped in " in tour.output
    assert not (tour.state / "dev.json").exists()


def test_every_file_that_the_readme_finds_in_the_state_folder_is_there(tour: Tour) -> None:
    tour.wait_ready()
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Where the state lives\n")[1]
    named = re.findall(r"^\| `([^`]+)` \|", section.split("\n## ")[0], re.MULTILINE)
    assert "api_key" in named
    assert [name for name in named if not (tour.state / name).exists()] == []
    assert (tour.state / "api_key").stat().st_mode & 0o777 == 0o600


def test_the_install_block_is_what_the_gate_runs() -> None:
    install = blocks("Quick start")[0][1].splitlines()
    assert install == ["make setup", ". .venv/bin/activate"]
    assert re.search(r"^make .*\bsetup\b", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs"])
def test_every_link_between_documents_leads_somewhere(name: str) -> None:
    files = sorted((ROOT / name).rglob("*.md")) if (ROOT / name).is_dir() else [ROOT / name]
    assert files
    broken = [
        f"{file.relative_to(ROOT)}: {link}"
        for file in files
        for link in _LINK.findall(file.read_text(encoding="utf-8"))
        if "://" not in link and not (file.parent / link).exists()
    ]
    assert broken == []


def test_every_setting_is_in_the_operators_reference_as_the_command_prints_it() -> None:
    printed = subprocess.run(
        [ROOT / ".venv/bin/plainsql-server", "settings"], capture_output=True, text=True, check=True
    )
    assert printed.stdout in (ROOT / "docs/reference/operator.md").read_text(encoding="utf-8")
