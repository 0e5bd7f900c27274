"""Words that the project has given up stay out of its source: each has a word that a database engineer knows."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("server/src", "client/src")

# Old identifiers, whole or as a part between underscores or capitals, and the word to use.
IDENTIFIERS = {
    "gate": "admission queue", "party": "tenant queue", "allotment": "reservation", "leave_at_a_loss":
    "release_with_penalty", "judgement": "classification", "judge": "classify", "leftovers": "session state",
    "visit": "service connection", "ground": "context", "furniture": "setup", "baton": "spanning lock",
    "strangers": "unknown credentials", "bears_with": "allows_stale", "rouse": "enable triggers",
    "patience": "client timeouts", "patient": "target", "unruly": "always triggers", "meagre": "missing privileges",
}  # fmt: skip
# Words of prose, and of what users read.
PROSE = {"whoever": "name them", "gladly": "", "heeds": "follows, obeys", "heeded": "followed, obeyed"}


# What an earlier run of `dev` left running has no other name; SQLAlchemy chose the last one.
ALLOWED = {("processes.py", "end_leftovers"), ("command.py", "end_leftovers"), ("dialect.py", "__visit_name__")}
# Functions in customers' databases: to change a comment in them, every database would need an upgrade.
ALLOWED_TEXTS = {"records.py"}


def identifiers(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.string


def parts(name: str) -> set[str]:
    """`GateMachine` and `stream_gate` both have the part `gate`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return {words, *words.split("_")}


def sources() -> list[Path]:
    found = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if "versions" not in path.parts]


def test_no_identifier_has_an_old_name() -> None:
    found = {
        (path.name, name)
        for path in sources()
        for name in set(identifiers(path.read_text()))
        if parts(name) & IDENTIFIERS.keys()
    }
    assert {each for each in found if each not in ALLOWED} == set()


def test_no_text_has_an_old_word() -> None:
    pattern = re.compile(rf"\b({'|'.join(PROSE)})\b", re.IGNORECASE)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/reference").glob("*.md")]
    found = {path.name: pattern.findall(path.read_text()) for path in [*sources(), *pages]}
    assert {name: words for name, words in found.items() if words and name not in ALLOWED_TEXTS} == {}


@pytest.mark.parametrize(("name", "part"), [("GateMachine", "gate"), ("stream_gate", "gate"), ("_judge", "judge")])
def test_parts_of_names_are_found(name: str, part: str) -> None:
    assert part in parts(name)
    assert "gate" not in parts("aggregate")
