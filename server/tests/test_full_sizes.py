"""A test that is shorter in the gate, or left out of it, runs in full somewhere: in `make soak`, or with its target."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What says that a file has more than it runs in the gate.
_MORE = re.compile(r"""\bIS_FULL\b|\bmark\.full\b|\bsize\("PLAINSQL_TEST_""")
# `make test-deploy` and `make test-packages` run them in full.
_TARGETS = ("server/tests/deploy/", "server/tests/test_packages.py")


def test_each_shortened_file_is_in_a_soak() -> None:
    shown = subprocess.run(["make", "--dry-run", "soak"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    soaks = {Path(word) for word in shown.split() if "/tests" in word}
    assert [str(path) for path in shortened_files() if not {path, *path.parents} & soaks] == []


def shortened_files() -> Iterator[Path]:
    """The files of tests that the gate shortens, without those that have targets of their own."""
    for folder in ("client", "console", "js", "server"):
        for file in (ROOT / folder).glob("tests/**/test_*.py"):
            path = file.relative_to(ROOT)
            if file != Path(__file__) and not str(path).startswith(_TARGETS) and _MORE.search(file.read_text()):
                yield path
