"""The guide's own snippets, run in order as a reader would, in a database of their own; what they show is compared."""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import plainsql
from server.tests import programs
from server.tests.service import Service

GUIDE = Path(__file__).resolve().parents[2] / "docs/client.md"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"^ *print\(.*\)  # (.*)$|^# (.*)$", re.MULTILINE)


@pytest.fixture
def place(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    name = f"guide{uuid4().hex[:8]}"
    service.customers.add_database(name)
    settings = {"URL": service.data_url, "KEY": service.api_key, "CA_FILE": service.dev["ca_file"], "DATABASE": name}
    for variable, value in settings.items():
        monkeypatch.setenv(f"PLAINSQL_{variable}", str(value))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python_of(page: Path) -> tuple[int, dict[str, Any]]:
    """Runs a page's snippets in order. Returns how many there are, and the names that they made."""
    blocks = [text for language, text in _FENCED.findall(page.read_text()) if language == "python"]
    names: dict[str, Any] = {}
    try:
        for text in blocks:
            output = io.StringIO()
            with redirect_stdout(output):
                exec(compile(text, str(page), "exec"), names)
            shown = [first or second for first, second in _SHOWN.findall(text)]
            assert output.getvalue().splitlines() == shown, text
    finally:
        names["db"].close()
    return len(blocks), names


def test_the_guide_s_python_does_what_it_shows(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, names = run_python_of(GUIDE)
    names["engine"].dispose()
    assert count >= 8
    # The guide says that its job has the exit codes of the command.
    with plainsql.connect() as db:
        monkeypatch.setenv("PLAINSQL_KEY", str(db.create_key("job", ["read"]).secret))
    assert names["run_job"]("2026-11-17") == 3
    monkeypatch.delenv("PLAINSQL_CA_FILE")
    assert names["run_job"]("2026-11-17") == 2


def test_the_guide_to_transactions_does_what_it_shows(place: Path) -> None:
    assert run_python_of(GUIDE.with_name("transactions.md"))[0] >= 2


_PAGE = """
const shown = [];
const made = () => ({ append() {}, set textContent(text) { shown.push(text); } });
globalThis.document = { createElement: made, body: made() };
const request = globalThis.fetch;
const tokens = process.env.TOKENS.split(",");
const next = () => ({ url: process.env.PLAINSQL_URL, token: tokens.shift() });
globalThis.fetch = (url, more) => url === "/session" ? { json: next } : request(url, more);
%s
console.log(shown.join());
"""


def test_the_guide_s_page_reads_with_a_session_and_the_next_one(place: Path, service: Service) -> None:
    """In Node, which has `fetch`; the few elements of a page that it uses are imitated. The first session has ended."""
    programs.need("node")
    (text,) = [text for language, text in _FENCED.findall(GUIDE.read_text()) if language == "js"]
    with plainsql.connect() as db:
        db.query("create table notes as select 1 as id, 'milk' as body union select 2, 'tea'")
        made = [db.create_session(scopes=["read"], database=os.environ["PLAINSQL_DATABASE"]) for _ in range(2)]
    with plainsql.connect(key=made[0].token) as ended:
        ended.end_session()
    (place / "page.mjs").write_text(_PAGE % text)
    environment = {
        **os.environ,
        "NODE_EXTRA_CA_CERTS": str(service.dev["ca_file"]),
        "TOKENS": ",".join(str(each.token) for each in made),
    }
    done = subprocess.run(["node", "page.mjs"], env=environment, cwd=place, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("milk,tea\n", 0), done.stderr


def test_the_guide_s_commands_print_what_it_shows(place: Path) -> None:
    blocks = [block for block in _FENCED.findall(GUIDE.read_text()) if block[0] in ("sh", "text")][1:]
    for (language, command), (next_language, shown) in pairwise([*blocks, ("", "")]):
        if language != "sh":
            continue
        done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, check=False, cwd=place)
        assert done.returncode == 0, done.stderr
        if next_language == "text":
            assert done.stdout == shown


def test_the_guide_shows_the_real_output_of_the_command(place: Path) -> None:
    """Those of single commands; `test_shell.py` has that of the shell."""
    blocks = [text for language, text in _FENCED.findall(GUIDE.read_text()) if not language]
    screens = [text for text in blocks if text.startswith("$ ") and not text.startswith("$ plainsql\n")]
    tables = "create table colours (name text)", "create table things (id int primary key, name text)"
    subprocess.run(["plainsql", "sql", *tables], check=True, capture_output=True)
    for text in screens:
        command, _, shown = text.removeprefix("$ ").partition("\n")
        done = subprocess.run(["bash", "-c", f"{command} 2>&1"], capture_output=True, text=True, check=False)
        assert masked(done.stdout) == masked(shown)
    assert len(screens) >= 2


def masked(text: str) -> list[str]:
    """The lines without what differs from run to run: the target, request ids, times."""
    text = re.sub(r"^→ .*$", "→", text, flags=re.MULTILINE)
    text = re.sub(r"\breq_\w+", "req_", text)
    text = re.sub(r"[\d.]+ [mµ]?s\b", "_ s", text)
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_the_guide_documents_every_exit_code_and_subcommand() -> None:
    text = GUIDE.read_text()
    done = subprocess.run([sys.executable, "-m", "plainsql", "--help"], capture_output=True, text=True, check=True)
    for name in re.findall(r"^    (\w+)  ", done.stdout, re.MULTILINE):
        assert f"`{name}" in text, name
