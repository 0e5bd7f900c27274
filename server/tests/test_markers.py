"""Only tests that say so claim anything about time: beside others, no close claim can be believed.

A claim is an assertion that something took less than some time, without STALL_S, which leaves room for a stall of the
machine. A test makes the claims of the functions of its file that it calls, too. Functions of other files make none,
but for those listed here.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from server.tests.selection import may_have

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
# Those run with nothing beside them.
_TIMING = re.compile(r"\bmark\.timing\b")
# Those may leave room in another way.
_CHAOS = re.compile(r"\bmark\.chaos\b")
# How long something took; what waits for a condition compares the clock itself with a moment.
_DURATION = re.compile(r"\belapsed|\btook_s\b|(monotonic|process_time|perf_counter|loop\.time)\(\) - |\.gone\(")
_CLOCK = re.compile(r"elapsed|took_s|monotonic|process_time|perf_counter|loop\.time|\.gone\(")
_BOUND = re.compile(r"\b([A-Z]+_)*(WITHIN|LIMIT|FELT|SOON|LATE|BOUND|UNDISTURBED)_M?S\b")
_MARGIN = re.compile(r"\bSTALL_S\b")

# The bars of chaos tests that leave room without STALL_S: several seconds more than what is claimed takes.
ROOMY = {
    "server/tests/consistency/test_spanning.py": "2 * BOUND_S",
    "server/tests/consistency/test_spanning_unavailable.py": "LATE_S",
    "server/tests/end_to_end/test_directory_unavailable.py": "GRACE_MS / 1000 + 3",
    "server/tests/end_to_end/test_redis_unavailable.py": "55",
    "server/tests/end_to_end/test_restart.py": "STOPPED_WITHIN_S",
    "server/tests/end_to_end/test_workers.py": "REPLACED_WITHIN_S",
    "server/tests/failover/test_failover.py": "BACK_WITHIN_S",
}
# Limits that only keep a test from waiting forever for a condition.
LIMITS = {
    "server/tests/end_to_end/test_stream_failures.py": {"_backends_gone"},
    "server/tests/fleet/test_waiting.py": {"until_refused"},
    "server/tests/tenant_isolation/test_fuzz.py": {"post"},
}

_parsed = cache(ast.parse)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def unmarked_claims(text: str, limits: frozenset[str] = frozenset(), roomy: str = "") -> Iterator[str]:
    """The tests in a file that say how long something may take, and are not marked for it."""
    module = _parsed(text if _may_claim(text) else "")
    of_all = " ".join(ast.unparse(each) for each in module.body if _sets_marks(each))
    functions = {each.name: each for each in ast.walk(module) if isinstance(each, Function)}
    calls = {name: _calls(each) & set(functions) for name, each in functions.items()}
    bars = {name: [] if name in limits else list(_bars(each)) for name, each in functions.items()}
    for name, each in functions.items():
        if name.startswith("test_"):
            marks = " ".join([of_all, *map(ast.unparse, each.decorator_list)])
            claimed = [bar for called in _called(name, calls) for bar in bars[called]]
            claimed = [bar for bar in claimed if not _MARGIN.search(bar)]
            if _CHAOS.search(marks):
                claimed = [bar for bar in claimed if not (roomy and roomy in bar)]
            if claimed and not _TIMING.search(marks):
                yield name


def claims_of_helpers(text: str, limits: frozenset[str] = frozenset()) -> Iterator[str]:
    """The functions in a file without tests that say how long something may take."""
    for each in ast.walk(_parsed(text if _may_claim(text) else "")):
        if isinstance(each, Function) and each.name not in limits and any(_bars(each)):
            yield each.name


def _may_claim(text: str) -> bool:
    """Whether the text has a word of one of the patterns. Most files have none, and taking them apart is slow."""
    return _CLOCK.search(text) is not None or _BOUND.search(text) is not None


def _sets_marks(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and any(
        isinstance(each, ast.Name) and each.id == "pytestmark" for each in statement.targets
    )


def _calls(function: Function) -> set[str]:
    """The names of the functions and methods that a function calls."""
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {getattr(each, "id", getattr(each, "attr", "")) for each in called}


def _called(name: str, calls: dict[str, set[str]]) -> set[str]:
    """A function and what it calls of the same file, and so on."""
    found, due = set[str](), [name]
    while due:
        if (each := due.pop()) not in found:
            found.add(each)
            due += calls[each]
    return found


def _bars(function: Function) -> Iterator[str]:
    """What durations are compared with: the larger sides of comparisons in assertions."""
    durations = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _DURATION.search(ast.unparse(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            for each in ast.walk(node.test):
                if isinstance(each, ast.Compare):
                    yield from _bars_of(each, durations)


def _bars_of(comparison: ast.Compare, durations: set[str]) -> Iterator[str]:
    operands = [ast.unparse(each) for each in (comparison.left, *comparison.comparators)]
    for smaller, larger, operator in zip(operands, operands[1:], comparison.ops, strict=False):
        is_duration = _DURATION.search(smaller) or durations.intersection(re.findall(r"\w+", smaller))
        if isinstance(operator, ast.Lt | ast.LtE) and (is_duration or _BOUND.search(larger)):
            yield larger


def _files() -> Iterator[tuple[str, str]]:
    for folder in ("server/tests", "client/tests", "js/tests", "console/tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def _limits(name: str) -> frozenset[str]:
    return frozenset(LIMITS.get(name, ()))


def test_tests_that_claim_something_about_time_are_marked() -> None:
    found = {
        name: list(unmarked_claims(text, _limits(name), ROOMY.get(name, "")))
        for name, text in _files()
        if Path(name).name.startswith("test_")
    }
    assert {name: tests for name, tests in found.items() if tests} == {}


def test_what_tests_share_claims_nothing_about_time() -> None:
    found = {
        name: list(claims_of_helpers(text, _limits(name)))
        for name, text in _files()
        if not Path(name).name.startswith("test_")
    }
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_no_exception_is_left_over() -> None:
    texts = dict(_files())
    assert [name for name, bar in ROOMY.items() if not any(bar in each for each in _all_bars(texts[name]))] == []
    unneeded = [name for name, each in LIMITS.items() if not each <= set(claims_of_helpers(texts[name]))]
    assert unneeded == []


def _all_bars(text: str) -> list[str]:
    return [bar for each in ast.walk(_parsed(text)) if isinstance(each, Function) for bar in _bars(each)]


CLAIMS = ["time.monotonic() - began_s < 2", "answer.elapsed_s <= 1", "0 < took_s < 3", "max(gone) < WITHIN_S"]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_is_found(claim: str) -> None:
    text = f"def test_it() -> None:\n    assert {claim}\n"
    assert list(unmarked_claims(text)) == ["test_it"]
    assert list(unmarked_claims(f"@pytest.mark.timing\n{text}")) == []
    assert list(unmarked_claims(f"pytestmark = pytest.mark.timing\n{text}")) == []
    # One more assertion, with a name that says nothing.
    assert list(unmarked_claims("def test_it():\n    x = time.monotonic() - y\n    assert x < 2\n")) == ["test_it"]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_of_a_function_that_a_test_calls_is_found(claim: str) -> None:
    helpers = f"def within() -> None:\n    assert {claim}\n\n\ndef between() -> None:\n    within()\n\n\n"
    assert list(unmarked_claims(f"{helpers}def test_it() -> None:\n    between()\n")) == ["test_it"]
    assert list(unmarked_claims(f"{helpers}def test_it() -> None:\n    pass\n")) == []
    assert list(unmarked_claims(f"{helpers}def test_it() -> None:\n    between()\n", frozenset(["within"]))) == []
    assert list(claims_of_helpers(helpers)) == ["within"]


def test_a_test_that_is_not_marked_must_leave_room() -> None:
    text = "def test_it() -> None:\n    assert answer.elapsed_s < {}\n"
    assert list(unmarked_claims(text.format("1.5"))) == ["test_it"]
    assert list(unmarked_claims(text.format("1.5 + STALL_S"))) == []
    assert list(unmarked_claims(text.format("LATER"), roomy="LATER")) == ["test_it"]
    text = f"pytestmark = pytest.mark.chaos\n\n\n{text}"
    assert list(unmarked_claims(text.format("1.5"))) == ["test_it"]
    assert list(unmarked_claims(text.format("LATER"), roomy="LATER")) == []


@pytest.mark.parametrize(
    ("expression", "marks", "expected"),
    [
        ("timing", "timing", True), ("timing", "chaos", False), ("chaos", "chaos", True), ("", "", True),
        ("unit and not (slow or timing)", "unit", True), ("unit and not (slow or timing)", "timing", False),
        ("not timing", "", True), ("timing or chaos", "chaos", True), ("timing and slow or chaos", "chaos", True),
    ],
)  # fmt: skip
def test_only_files_without_a_wanted_marker_are_not_imported(expression: str, marks: str, *, expected: bool) -> None:
    assert may_have(expression, f"pytestmark = pytest.mark.{marks}") == expected


def test_every_marker_is_written_where_the_tests_are() -> None:
    """A conftest.py that marked tests would be overlooked."""
    assert [name for name, text in _files() if name.endswith("conftest.py") and "add_marker" in text] == []


@pytest.mark.parametrize("other", ["time.monotonic() < end_s", "answer.elapsed_s > 0", "count <= 3"])
def test_waiting_and_counting_are_no_claims(other: str) -> None:
    assert list(unmarked_claims(f"def test_it() -> None:\n    assert {other}\n")) == []
