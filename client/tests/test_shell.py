"""The interactive shell in a real terminal: tmux types, and what the screen then shows is looked at."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import plainsql
from client.tests.test_guide import GUIDE, masked
from server.tests.programs import need
from server.tests.service import Service

_WAIT_S = 30


class Terminal:
    """A terminal of 100 columns with the shell in it."""

    def __init__(self, service: Service, state: Path, lines: int = 24) -> None:
        self._socket = f"plainsql-{uuid4().hex[:8]}"
        environment = {
            "PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key, "XDG_STATE_HOME": str(state),
            "PLAINSQL_CA_FILE": str(service.dev["ca_file"]), "PAGER": "less -SX", "LESS": "",
            "VISUAL": "sed -i 's/count(.)/& + 41/'",
        }  # fmt: skip
        options = [part for name, value in environment.items() for part in ("-e", f"{name}={value}")]
        command = str(Path(sys.executable).with_name("plainsql"))
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-s", "shell", "-x", "100", "-y", str(lines), *options, command
        )

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        environment = {**os.environ, "LANG": "C.UTF-8"}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    def type(self, text: str) -> None:
        # tmux takes a semicolon at the end for one of its own.
        self._tmux("send-keys", "-t", "shell", "-l", text.removesuffix(";") + ("\\;" if text.endswith(";") else ""))

    def press(self, key: str) -> None:
        self._tmux("send-keys", "-t", "shell", key)

    def enter(self, text: str) -> None:
        self.type(text)
        self.press("Enter")

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", "shell")

    def wait_for(self, text: str) -> str:
        return self.wait_until(lambda shown: text in shown)

    def wait_for_prompts(self, count: int) -> str:
        return self.wait_until(lambda shown: shown.count("plainsql>") == count)

    def wait_for_prompt(self, prompt: str = "plainsql>") -> str:
        """Waits until the shell reads what is typed. What is typed before is shown twice."""
        return self.wait_until(lambda shown: shown.rstrip().rpartition("\n")[2] == prompt)

    def wait_until(self, is_there: Callable[[str], bool]) -> str:
        end = time.monotonic() + _WAIT_S
        while not is_there(shown := self.screen()):
            assert time.monotonic() < end, shown
        return shown

    def wait_until_ended(self) -> None:
        """Waits until the shell has ended, and with it its terminal."""
        end = time.monotonic() + _WAIT_S
        while (
            subprocess.run(["tmux", "-L", self._socket, "has-session"], capture_output=True, check=False).returncode
            == 0
        ):
            assert time.monotonic() < end, self.screen()

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def terminal(service: Service, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    need("tmux", "less")
    made = Terminal(service, tmp_path, getattr(request, "param", 24))
    yield made
    made.close()


def test_the_shell_completes_marks_errors_cancels_keeps_history_and_pages(
    terminal: Terminal, db: plainsql.Client, service: Service
) -> None:
    name = f"shelf_{uuid4().hex[:6]}"
    db.query(f"create table {name} as select g as id, 'item ' || g as label from generate_series(1, 500) g")
    terminal.wait_for("plainsql>")

    terminal.type("select id, lab")
    terminal.wait_for(f"of {name}")
    terminal.press("C-c")

    terminal.enter("select id, lable")
    terminal.enter(f"from {name};")
    shown = terminal.wait_for("Code: undefined_column (42703)").splitlines()
    pointed = next(at for at, line in enumerate(shown) if line.startswith("Line 1: select id, lable"))
    assert shown[pointed + 1] == " " * 19 + "^"

    terminal.enter("select pg_sleep(77);")
    _wait_for_sleepers(service, 1)
    terminal.press("C-c")
    terminal.wait_for("Cancelled.")
    _wait_for_sleepers(service, 0)

    terminal.enter(f"select * from {name} order by id;")
    assert "item 40" not in terminal.wait_for("item 21")
    terminal.press("q")
    terminal.wait_for("500 rows")
    terminal.wait_for_prompt()
    terminal.press("Up")
    terminal.wait_for(f"plainsql> select * from {name} order by id;")
    terminal.press("C-c")
    terminal.enter(f"\\d {name}")
    terminal.wait_for("label  | text")
    db.query(f"drop table {name}")


@pytest.mark.parametrize("terminal", [60], indirect=True)
def test_the_guide_s_screen_is_what_the_shell_shows(terminal: Terminal, service: Service) -> None:
    """Types what the guide types, and compares what is then on the screen."""
    blocks = re.findall(r"^```\n(\$ plainsql\n.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    shown = [line for line in blocks[0].splitlines() if line != "$ plainsql"]
    prompts = 0
    for at, line in enumerate(shown[:-1]):
        if not line.startswith(("plainsql> ", "       -> ")):
            continue
        prompts += line.startswith("plainsql> ")
        terminal.wait_for_prompts(prompts)
        terminal.enter(line[10:])
        if shown[at + 1].startswith("^C"):
            _wait_for_sleepers(service, 1, "select pg_sleep(60)")
            terminal.press("C-c")
    screen = terminal.wait_for_prompts(prompts + 1)
    assert masked(screen) == masked("\n".join(shown))


def test_the_shell_keeps_the_history_of_earlier_sessions(service: Service, tmp_path: Path) -> None:
    need("tmux")
    for press in ("type", "recall"):
        terminal = Terminal(service, tmp_path)
        terminal.wait_for("plainsql>")
        if press == "type":
            terminal.enter("select 'of yesterday' as it;")
        else:
            terminal.press("Up")
        terminal.wait_for("select 'of yesterday' as it;" if press == "recall" else "SELECT 1 row")
        terminal.close()


def _wait_for_sleepers(service: Service, wanted: int, sql: str = "select pg_sleep(77)") -> None:
    end = time.monotonic() + _WAIT_S
    with service.engine() as engine:
        asked = f"select count(*) from pg_stat_activity where state = 'active' and query like '{sql}%'"
        while engine.execute(asked).fetchone() != (wanted,):
            assert time.monotonic() < end
