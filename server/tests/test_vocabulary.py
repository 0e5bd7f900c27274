"""Names and words that the project has given up stay out: each has a name that a database engineer knows.

To give up a name, add it to PARTS or WHOLE with its replacement. If an old name is right somewhere, add it to the
exceptions with a reason. An exception that no longer occurs fails, too.
"""

import ast
import io
import os
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from plainsql_server.http.server.error_codes import CODES, OPERATORS_CODES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
THIS = Path(__file__).resolve().relative_to(ROOT).as_posix()
SOURCES = ("server/src/", "client/src/")
TOPS = ("server", "client", "js", "examples", "bench", "deploy", "docs", ".ci", ".github")
NOT_OURS = {"__pycache__", "build", "dist", "node_modules", "versions"}

# Old names as parts of identifiers and file names: between underscores, capitals, dots, slashes or hyphens.
PARTS = {
    "gate": "admission queue", "turn": "slot", "turns": "slots", "party": "tenant queue",
    "allotment": "reservation", "leave_at_a_loss": "release_with_penalty", "judgement": "classification",
    "judge": "classify", "leftovers": "session state", "visit": "service connection", "ground": "probe context",
    "furniture": "setup SQL", "baton": "spanning lock", "moment": "snapshot", "moments": "snapshots",
    "catalog_prints": "schema fingerprint", "piece": "chunk, archive part", "pieces": "chunks, archive parts",
    "silence": "disable_triggers, timeout", "rouse": "enable_triggers", "standing": "credential watch",
    "stranger": "unknown credential, other tenant", "strangers": "unknown credentials, other tenants",
    "bears_with": "stale_if_error", "patience": "client timeouts", "short_way": "fast path", "told": "to_error",
    "said": "evidence, message, output", "wish": "request", "course": "progress", "patient": "target",
    "mend": "fix", "mended": "fixed", "mends": "fixes", "unruly": "ALWAYS_TRIGGERS", "meagre": "MISSING_PRIVILEGES",
    "rooms": "packages", "away": "unavailable, unreachable", "kernel": "extension modules",
}  # fmt: skip
_PART = re.compile(f"_({'|'.join(PARTS)})_")
# Old names that are ordinary as parts of others: `is_closing`, `under_way`, `error_codes`, `plain_service`.
WHOLE = {
    "plain": "without_code", "not_plain": "has_code", "following": "change apply, next", "closing": "fencing",
    "holding": "move hold", "trust": "freshness, ssl_context", "heads": "request heads", "forms": "stream formats",
    "form": "format", "codes": "error codes", "way": "response channel", "ways": "conninfos", "room": "max_databases",
    "default_room": "DEFAULT_MAX_DATABASES", "banner_routes": "utility routes", "banner": "health",
    "scratch": "temporary schema",
}  # fmt: skip
# Where WHOLE applies to the product only: in tests, these are ordinary words for what tests do.
ORDINARY_IN_TESTS = {"plain", "closing", "holding", "trust", "codes", "banner", "scratch"}
ERROR_CODES = {
    "copy", "notification", "no_record", "too_few_turns", "transaction_timed_out", "engine_away", "directory_away",
}  # fmt: skip
COMMANDS = ("--room", "cell move", "make kernel")
# Words of prose: docs, docstrings, comments, messages and help texts.
PROSE = ("told", "whoever", "gladly", "heeds", "heeded", "mend", "mends", "short way", "nobody else")
_WORD = re.compile(rf"(?<![\w-])({'|'.join((*PROSE, *COMMANDS))})\b")

# By file and identifier, and why it stays.
IDENTIFIERS_ALLOWED: Mapping[tuple[str, str], str] = {
    ("client/src/plainsql/dialect.py", "__visit_name__"): "SQLAlchemy's",
    ("client/src/plainsql/transport/protocol.py", "banner"): "the specification's name for the answer of GET /",
    ("server/src/plainsql_server/operations/check_edge.py", "banner"): "as above",
    ("server/src/plainsql_server/http/app/openapi.py", "codes"): "the codes of a route, in its document",
    ("server/src/plainsql_server/http/app/openapi.py", "_codes"): "as above",
    ("server/src/plainsql_server/http/app/openapi.py", "CODES"): "the table of error_codes.py",
    ("server/src/plainsql_server/http/server/error_codes.py", "CODES"): "as above",
    ("server/src/plainsql_server/http/server/errors.py", "CODES"): "as above",
    ("client/src/plainsql/command/terminal.py", "_CODES"): "the terminal's escape codes",
    ("server/src/plainsql_server/dev/command.py", "end_leftovers"): "what an earlier run of `dev` left running",
    ("server/src/plainsql_server/dev/processes.py", "end_leftovers"): "as above",
    ("server/tests/dev/test_leftovers.py", "end_leftovers"): "as above",
    ("client/src/plainsql/command/mcp_bridge.py", "form"): "the protocol's name for a kind of dialog",
    ("server/src/plainsql_server/http/control/mcp/serving.py", "form"): "as above",
    ("conftest.py", "IN_GATE"): "the gate of continuous integration",
    ("server/tests/programs.py", "IN_GATE"): "as above",
}
PATHS_ALLOWED: Mapping[str, str] = {
    "docs/decisions/0019-the-gate.md": "the gate of continuous integration",
    "server/tests/dev/test_leftovers.py": "what an earlier run of `dev` left running",
}
# By file and word, and why it stays.
PROSE_ALLOWED: Mapping[tuple[str, str], str] = {
    ("CHANGELOG.md", "mend"): "the list of renamed names",
    ("CHANGELOG.md", "--room"): "as above",
    ("CHANGELOG.md", "cell move"): "as above",
    ("CHANGELOG.md", "make kernel"): "as above",
    ("docs/decisions/0007-where-the-time-goes.md", "make kernel"): "what a later decision removed",
    ("server/src/plainsql_server/engine/execution/records.py", "whoever"): "a function in every customer's database",
}


@cache
def our_files() -> tuple[str, ...]:
    """Every file that we wrote, migrations aside: what they did is in databases."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for top in TOPS:
        for folder, folders, names in os.walk(ROOT / top):
            folders[:] = [each for each in folders if each not in NOT_OURS and not each.endswith(".egg-info")]
            found += [Path(folder) / name for name in names]
    return tuple(sorted({path.relative_to(ROOT).as_posix() for path in found} - {THIS}))


def python_files() -> list[str]:
    return [name for name in our_files() if name.endswith((".py", ".pyi"))]


def identifiers(text: str) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def words_in(name: str) -> str:
    """`GateMachine`, `stream_gate` and `the-gate.md` as words between underscores."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-./]", "_", name).lower().strip("_")


@cache
def is_old(name: str, *, in_tests: bool = False) -> bool:
    words = words_in(name)
    whole = WHOLE.keys() - ORDINARY_IN_TESTS if in_tests else WHOLE.keys()
    return words in whole or _PART.search(f"_{words}_") is not None


def old_identifiers() -> Iterator[tuple[str, str]]:
    for path in python_files():
        text = (ROOT / path).read_text(encoding="utf-8")
        in_tests = not path.startswith(SOURCES)
        # Most files have no old name even in their comments and texts, and need not be tokenized.
        found = {name for name in set(re.findall(r"[A-Za-z_]\w*", text)) if is_old(name, in_tests=in_tests)}
        yield from ((path, name) for name in (found & identifiers(text) if found else ()))


def old_words() -> Iterator[tuple[str, str]]:
    for path in our_files():
        if path.endswith((".md", ".py", ".pyi", ".html", ".js", ".yml", ".conf", ".toml", "Makefile", "/run")):
            text = checked_part(path, (ROOT / path).read_text(encoding="utf-8")).lower()
            yield from ((path, word) for word in _WORD.findall(text))


def checked_part(path: str, text: str) -> str:
    """The text without what is dated, and not edited later: the notes of a release."""
    return text.partition("\n## [0.")[0] if path == "CHANGELOG.md" else text


def classes() -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files():
        if path.startswith("server/src/"):
            for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(path)
    return found


def test_no_identifier_has_an_old_name() -> None:
    found = set(old_identifiers())
    assert found - IDENTIFIERS_ALLOWED.keys() == set()
    assert IDENTIFIERS_ALLOWED.keys() - found == set(), "exceptions that are no longer needed"


def test_no_file_has_an_old_name() -> None:
    found = {path for path in our_files() for part in Path(path).parts if is_old(part.partition(".")[0], in_tests=True)}
    assert found - PATHS_ALLOWED.keys() == set()
    assert PATHS_ALLOWED.keys() - found == set(), "exceptions that are no longer needed"


def test_no_text_has_an_old_word() -> None:
    found = set(old_words())
    assert found - PROSE_ALLOWED.keys() == set()
    assert PROSE_ALLOWED.keys() - found == set(), "exceptions that are no longer needed"


def test_no_error_has_an_old_code() -> None:
    assert ERROR_CODES & {*CODES, *OPERATORS_CODES} == set()


def test_no_two_classes_of_the_server_have_one_name() -> None:
    assert {name: paths for name, paths in classes().items() if len(paths) > 1} == {}


@pytest.mark.parametrize(
    "name",
    ["GateMachine", "stream_gate", "_judge", "leave_at_a_loss", "ShortWay", "_UNRULY", "plain", "0005-short-way"],
)
def test_an_old_name_is_found(name: str) -> None:
    assert is_old(name)


@pytest.mark.parametrize("name", ["aggregate", "returns", "is_closing", "under_way", "error_codes", "plain_service"])
def test_an_ordinary_name_is_not_taken_for_an_old_one(name: str) -> None:
    assert not is_old(name)
    assert is_old("plain")
    assert not is_old("plain", in_tests=True)
