"""Only tests that say so claim anything about time: beside others, no such claim can be believed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
# Those run with nothing beside them, or have bounds that leave room for it.
_MARKED = re.compile(r"\bmark\.(timing|chaos)\b")
# How long something took; what waits for a condition compares the clock itself with a moment.
_DURATION = re.compile(r"\belapsed|\btook_s\b|(monotonic|process_time|perf_counter|loop\.time)\(\) - ")
_BOUND = re.compile(r"\b([A-Z]+_)*(WITHIN|LIMIT|FELT|SOON|LATE)_M?S\b")


def unmarked_claims(text: str) -> Iterator[str]:
    """The tests in a file that say how long something may take, and are not marked."""
    statements = ast.parse(text).body
    if any(_MARKED.search(ast.unparse(each)) for each in statements if isinstance(each, ast.Assign)):
        return
    for each in statements:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_"):
            is_marked = any(_MARKED.search(ast.unparse(decorator)) for decorator in each.decorator_list)
            if not is_marked and any(_claims_duration(node) for node in ast.walk(each)):
                yield each.name


def _claims_duration(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assert):
        return False
    return any(_bounds_duration(each) for each in ast.walk(node.test) if isinstance(each, ast.Compare))


def _bounds_duration(comparison: ast.Compare) -> bool:
    operands = [ast.unparse(each) for each in (comparison.left, *comparison.comparators)]
    return any(
        isinstance(operator, ast.Lt | ast.LtE) and bool(_DURATION.search(smaller) or _BOUND.search(larger))
        for smaller, larger, operator in zip(operands, operands[1:], comparison.ops, strict=False)
    )


def test_tests_that_claim_something_about_time_are_marked() -> None:
    files = [*(ROOT / "server/tests").rglob("test_*.py"), *(ROOT / "client/tests").rglob("test_*.py")]
    found = {path.name: list(unmarked_claims(path.read_text())) for path in files}
    assert {name: tests for name, tests in found.items() if tests} == {}


@pytest.mark.parametrize(
    "claim", ["time.monotonic() - began_s < 2", "answer.elapsed_s <= 1", "0 < took_s < 3", "max(gone) < WITHIN_S"]
)
def test_a_claim_is_found(claim: str) -> None:
    text = f"def test_it() -> None:\n    assert {claim}\n"
    assert list(unmarked_claims(text)) == ["test_it"]
    assert list(unmarked_claims(f"@pytest.mark.timing\n{text}")) == []
    assert list(unmarked_claims(f"pytestmark = pytest.mark.chaos\n{text}")) == []


@pytest.mark.parametrize("other", ["time.monotonic() < end_s", "answer.elapsed_s > 0", "count <= 3"])
def test_waiting_and_counting_are_no_claims(other: str) -> None:
    assert list(unmarked_claims(f"def test_it() -> None:\n    assert {other}\n")) == []
