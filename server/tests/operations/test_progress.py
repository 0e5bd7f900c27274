"""The bar that a person sees while a backup is taken and restored, on a real terminal."""

import os
import pty
import select
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from plainsql_server.cli.progress import Bar, size
from plainsql_server.operations.progress import TablesDumped
from server.tests.operations.stage import Stage


def on_a_terminal(stage: Stage, *arguments: str, stdout: int | None = None, columns: int = 120) -> str:
    """What the command shows on a terminal; standard output goes elsewhere if it is to."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    command = [sys.executable, "-m", "plainsql_server", *arguments]
    process = subprocess.Popen(command, stdin=slave, stdout=stdout or slave, stderr=slave, env=stage.environment())
    os.close(slave)
    shown = b""
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        if select.select([master], [], [], 0.1)[0]:
            try:
                shown += os.read(master, 1 << 16)
            except OSError:
                # The terminal's other end is closed.
                break
    os.close(master)
    assert process.wait(30) == 0, shown
    return shown.decode()


def test_the_bar_moves_and_ends_at_a_hundred_for_each_step(stage: Stage, tmp_path: Path) -> None:
    with stage.owner() as owner:
        owner.execute("create table t as select g, repeat(md5(g::text), 20) from generate_series(1, 60000) g")
    file = tmp_path / "main.backup"
    shown = on_a_terminal(stage, "backup", "--org", "acme", "main", "--output", str(file))
    last = [line.rpartition("\r")[2] for line in shown.strip().split("\r\n")]
    assert [line.removeprefix("\x1b[K").split("█")[0].strip() for line in last[:-1]] == [
        "safe snapshot", "schema", "data", "records",
    ]  # fmt: skip
    assert all("100 %" in line for line in last[:-1])
    assert last[-1].startswith(f"Wrote {file}")
    shares = [int(part.split("%")[0].split()[-1]) for part in shown.split("\r") if "░" in part]
    assert shares == sorted(shares)
    assert len(set(shares)) > 2
    restored = on_a_terminal(stage, "restore", "--org", "acme", "copy", "--input", str(file))
    for step in ("schema", "data", "records", "indexes", "privileges", "statistics", "publish"):
        assert f"\x1b[K{step} " in restored
    with (tmp_path / "piped").open("wb") as piped:
        on_a_terminal(stage, "backup", "--org", "acme", "main", stdout=piped.fileno())
    assert abs((tmp_path / "piped").stat().st_size - file.stat().st_size) < 100_000


def test_the_bar_keeps_to_one_line_of_any_terminal(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest line that there can be, and a real backup on a terminal of 60 columns."""
    master, slave = pty.openpty()
    for columns, most in ((0, 79), (20, 19), (80, 79), (200, 110)):
        termios.tcsetwinsize(slave, (24, columns))
        with os.fdopen(os.dup(slave), "w") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            bar = Bar()
            bar.step("the change of places", 10**12)
            bar._began_s -= 10_000
            bar._shown_s = 0
            bar.at(999 * 10**9)
            monkeypatch.undo()
        drawn = os.read(master, 1 << 16).decode().rpartition("\x1b[K")[2]
        assert len(drawn) <= most
        assert drawn.startswith("the change of place")
    for end in (master, slave):
        os.close(end)
    with stage.owner() as owner:
        owner.execute("create table t as select g, repeat(md5(g::text), 20) from generate_series(1, 30000) g")
    shown = on_a_terminal(stage, "backup", "--org", "acme", "main", "--output", str(tmp_path / "it"), columns=60)
    drawn_lines = [part.removeprefix("\x1b[K").rstrip("\r\n") for part in shown.split("\r")][:-1]
    assert max(len(line) for line in drawn_lines if "%" in line) <= 59


def test_a_terminal_is_not_filled_with_a_backup(stage: Stage) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "plainsql_server", "backup", "--org", "acme", "main"]
    ended = subprocess.run(command, stdout=slave, stderr=subprocess.PIPE, env=stage.environment(), check=False)
    os.close(slave)
    os.close(master)
    assert ended.returncode == 2
    assert b"--output" in ended.stderr


def test_progress_of_a_dump_follows_the_sizes_of_its_tables() -> None:
    dumped = TablesDumped({"public.small": 100, "public.large": 900})
    dumped.hear('pg_dump: dumping contents of table "public.small"')
    assert dumped.wrote(50) == 50
    # What is written of a table may be longer than the table.
    assert dumped.wrote(500) == 100
    dumped.hear('pg_dump: dumping contents of table "public.large"')
    assert dumped.wrote(300) == 400
    # Names can hold anything, and what is not known counts nothing.
    dumped.hear('pg_dump: dumping contents of table "public.x')
    dumped.hear('pg_dump: dumping contents of table "public.unknown"')
    assert dumped.wrote(10_000) == 1000


def test_a_size_has_three_digits_and_a_unit() -> None:
    assert [size(n) for n in (0, 999, 1_000, 12_345, 999_400_000, 5e13)] == [
        "0 B", "999 B", "1 kB", "12.3 kB", "999 MB", "50 TB",
    ]  # fmt: skip
