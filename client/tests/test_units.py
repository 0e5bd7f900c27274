"""Registers as lists: what the checker finds in histories made by hand, in which each write follows a read."""

import pytest

from client.tests.units import as_lists, reply_to
from plainsql import Error, NetworkError, ResultError
from plainsql.errors import EngineError, TransactionError
from server.tests.consistency.checker import check
from server.tests.consistency.notation import Written, a, fail, history, ok, r

pytestmark = pytest.mark.unit

# The transactions, and exactly the classes that are to be found. A register holds one number, or none yet.
CASES: dict[str, tuple[list[Written], set[str]]] = {
    "nothing, if each replaces what the one before it wrote": (
        [ok(r(1), a(1, 1)), ok(r(1, 1), a(1, 2), r(1, 2), a(1, 3)), ok(r(1, 3)), ok(r(1, 1))],
        set(),
    ),
    "two that replace the same number": (
        [ok(r(1), a(1, 1)), ok(r(1, 1), a(1, 2)), ok(r(1, 1), a(1, 3)), ok(r(1, 2)), ok(r(1, 3))],
        {"INCOMPATIBLE"},
    ),
    "a number that was overwritten without being read": (
        [ok(r(1), a(1, 1)).at(0, 1), ok(r(1), a(1, 2)).at(0, 1), ok(r(1, 2)).at(2, 3)],
        {"LOST"},
    ),
    "a number of a transaction that failed": ([fail(r(1), a(1, 1)), ok(r(1, 1))], {"G1A"}),
    "write skew": (
        [
            ok(r(1), a(1, 1), r(2), a(2, 2)),
            ok(r(1, 1), r(2, 2), a(1, 3)),
            ok(r(1, 1), r(2, 2), a(2, 4)),
            ok(r(1, 3), r(2, 4)),
        ],
        {"G2_ITEM"},
    ),
}


def test_errors_of_the_client_itself_are_complaints() -> None:
    expected: list[Error] = [NetworkError("x", outcome="unknown"), EngineError({}, status=503)]
    assert [reply_to(each, is_complete=True).complaint for each in expected] == ["", ""]
    for fault in (TransactionError("feature_not_supported", "0A000", "x"), ResultError("x")):
        assert reply_to(fault, is_complete=False).complaint


@pytest.mark.parametrize("name", CASES)
def test_the_checker_finds_in_registers(name: str) -> None:
    transactions, expected = CASES[name]
    assert {kind.name for kind in check(as_lists(history(*transactions))).kinds} == expected
