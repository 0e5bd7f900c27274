"""The commands of docs/backups.md, below its headings."""

import re
from pathlib import Path

from server.tests.install.guide import commands, read_guide

GUIDE = Path(__file__).resolve().parents[3] / "docs/backups.md"


def section(heading: str) -> str:
    """The text under a heading, without what is below further headings."""
    _, _, rest = GUIDE.read_text(encoding="utf-8").partition(f"# {heading}\n")
    assert rest, heading
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def listed(text: str) -> list[str]:
    """The command lines of a text."""
    return commands(text)


def steps(heading: str) -> list[list[str]]:
    """The command lines of each step of a guide."""
    return read_guide(heading, GUIDE.read_text(encoding="utf-8")).steps
