"""The commands of docs/install.md: each line of a block marked `sh` is one.

guide = read_guide("One machine with systemd")
guide.to_first_answer     # before the first heading below that of the guide
guide.afterwards["Check the installation"]
guide.steps[0]            # of a guide with numbered steps
"""

import re
from dataclasses import dataclass
from pathlib import Path

_DOCS = Path(__file__).resolve().parents[3] / "docs"
FILE = _DOCS / "install.md"
# Also below the steps of a list.
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Guide:
    """The commands of one guide."""

    to_first_answer: list[str]
    steps: list[list[str]]
    afterwards: dict[str, list[str]]


def read_guide(heading: str, text: str | None = None) -> Guide:
    """The guide under this heading."""
    text = FILE.read_text(encoding="utf-8") if text is None else text
    _, _, rest = text.partition(f"\n## {heading}\n")
    assert rest, f"there is no guide named {heading!r}"
    first, *others = re.split(r"^### ", rest.partition("\n## ")[0], flags=re.MULTILINE)
    steps = [commands(each) for each in re.split(r"^\d+\. ", first, flags=re.MULTILINE)[1:]]
    return Guide(commands(first), steps, {each.partition("\n")[0]: commands(each) for each in others})


def rotations() -> list[str]:
    """The commands of docs/operating.md that rotate everything on such a machine."""
    text = (_DOCS / "operating.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n### Rotate everything on one machine\n")
    return commands(section.partition("\n### ")[0])


def commands(text: str) -> list[str]:
    """The commands in the blocks of a text. A line that ends with a backslash continues."""
    lines = "".join(_BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()]
