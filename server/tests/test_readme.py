"""The README's five minutes, run as a new user would: its own commands, in its own order, in two terminals.

Two things differ from a user's run. The ports in the README are replaced by free ones, as if an earlier start had kept
them, so that a service that runs here already is not in the way. And nothing is installed, because this environment has
everything; `test_packages.py` installs the packages in a new one.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from plainsql_server.dev.kept_ports import USUAL_PORTS
from plainsql_server.dev.ports import choose_ports

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ACTIVATE = f". {ROOT}/.venv/bin/activate"
# A loaded machine may take longer than the seconds that the README speaks of.
_START_LIMIT_S = 60
_STOP_LIMIT_S = 60

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A link to a heading, of this or another document.
_ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
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

    def __init__(self, home: Path, start: str, prepare: str) -> None:
        self._home = home
        self._folder = home / "tour"
        self._prepare = prepare
        self.state = self._folder / ".plainsql"
        self.output_file = home / "first-terminal"
        self._ports = choose_ports(dict.fromkeys(USUAL_PORTS, 0))
        self.state.mkdir(parents=True)
        (self.state / "ports.json").write_text(json.dumps(self._ports))
        with self.output_file.open("wb") as output:
            # A session of its own, so that a signal to its group is what Ctrl-C is in a terminal.
            self.first_terminal = subprocess.Popen(
                ["bash", "-e", "-c", f"{ACTIVATE}\n{start}"],
                cwd=self._folder, env=self._environment(), stdout=output, stderr=output, start_new_session=True,
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
        """The last line that these commands print in the second terminal."""
        printed, remarks = self.printed(commands)
        assert remarks == ""
        last: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return last

    def printed(self, commands: str) -> tuple[str, str]:
        """What these commands print in the second terminal: results and remarks."""
        done = subprocess.run(
            self._shell(f"{ACTIVATE}\n{self._prepare}\n{commands}"),
            cwd=self._folder, env=self._environment(), capture_output=True, text=True, timeout=_START_LIMIT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def press_ctrl_c(self) -> None:
        os.killpg(self.first_terminal.pid, signal.SIGINT)
        self.first_terminal.wait(_STOP_LIMIT_S)

    def end(self) -> None:
        if self.first_terminal.poll() is None:
            self.press_ctrl_c()

    def _shell(self, commands: str) -> list[str]:
        free = {str(port): str(self._ports[option]) for option, port in USUAL_PORTS.items()}
        return ["bash", "-e", "-c", re.sub("|".join(free), lambda match: free[match[0]], commands)]

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
    first, prepare = [text for language, text in blocks("Quick start") if language == "sh"][:2]
    begun = Tour(home, first.splitlines()[1], prepare)
    yield begun
    begun.end()


def test_every_command_of_the_five_minutes_gives_the_answer_that_the_readme_shows(tour: Tour) -> None:
    tour.wait_ready()
    expected = shown_answers(blocks("Quick start"))
    assert len(expected) == 6
    for commands, shown in expected:
        assert without_chance(tour.answer(commands)) == without_chance(shown), commands
    _try_the_client(tour)
    tour.press_ctrl_c()
    assert tour.first_terminal.returncode == 0, tour.output
    assert "Stopped in " in tour.output
    assert not (tour.state / "dev.json").exists()


def _try_the_client(tour: Tour) -> None:
    (text,) = [text for language, text in blocks("Python and the command line") if not language]
    shown, shell, program = [line.removeprefix("$ ") for line in text.splitlines()]
    assert "oat milk" in tour.printed(shown)[0]
    assert shell == "plainsql"
    assert tour.printed(program) == ("2\n", "")


def test_every_file_that_the_readme_finds_in_the_state_folder_is_there(tour: Tour) -> None:
    tour.wait_ready()
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Where the state lives\n")[1]
    named = re.findall(r"^\| `([^`]+)` \|", section.split("\n## ")[0], re.MULTILINE)
    assert "api_key" in named
    assert [name for name in named if not (tour.state / name).exists()] == []
    assert (tour.state / "api_key").stat().st_mode & 0o777 == 0o600


def test_two_commands_install_and_start_it() -> None:
    assert blocks("Quick start")[0][1].splitlines() == [
        "pip install 'plainsql-server[dev]' plainsql",
        "plainsql-server dev",
    ]
    names = [tomllib.loads((ROOT / f"{name}/pyproject.toml").read_text())["project"] for name in ("server", "client")]
    assert [each["name"] for each in names] == ["plainsql-server", "plainsql"]
    assert "dev" in names[0]["optional-dependencies"]


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "deploy"])
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


def test_every_link_to_a_heading_finds_it() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
    links = [(file, *link) for file in files for link in _ANCHOR.findall(file.read_text(encoding="utf-8"))]
    assert len(links) > 100
    broken = [
        f"{file.relative_to(ROOT)}: {path}#{anchor}"
        for file, path, anchor in links
        if "://" not in path and anchor not in _anchors(file.parent / path if path else file)
    ]
    assert broken == []


@cache
def _anchors(file: Path) -> frozenset[str]:
    """The headings of a document, as links name them."""
    text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings)


def test_every_setting_is_in_the_operators_reference_as_the_command_prints_it() -> None:
    printed = subprocess.run(
        [ROOT / ".venv/bin/plainsql-server", "settings"], capture_output=True, text=True, check=True
    )
    assert printed.stdout in (ROOT / "docs/reference/operator.md").read_text(encoding="utf-8")
