"""Programs at random, against a toy service: each sees and commits what it would in one real transaction."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.tests.toy_service import Program, Toy
from plainsql.errors import Error, TransactionError
from server.tests.examples import examples

pytestmark = pytest.mark.unit

# A row that is there cannot be inserted, which ends most programs; so the first rows have few keys, and inserts many.
FIRST_KEYS = st.sampled_from("ab")
KEYS = st.sampled_from("abcdefgh")
STATEMENTS = st.one_of(
    st.builds("select v from {}".format, KEYS),
    st.just("select v from all"),
    st.builds("select bump({})".format, FIRST_KEYS),
    st.builds("insert {}".format, KEYS),
    st.builds("insert {}".format, KEYS),
    st.builds("update {} = {}".format, KEYS, st.integers(0, 9)),
)
SAVEPOINTS = st.builds(
    "{} {}".format, st.sampled_from(["savepoint", "savepoint", "rollback to", "release"]), st.sampled_from("xy")
)
STEPS = st.one_of(STATEMENTS, STATEMENTS, STATEMENTS, SAVEPOINTS)


class Reference:
    """The same statements in one real transaction: each savepoint is a copy."""

    def __init__(self, toy: Toy) -> None:
        self.toy = Toy()
        self.toy.rows = dict(toy.rows)
        self.marks: list[tuple[str, dict[str, int]]] = []
        self.has_failed = False

    def run(self, sql: str, drawn: int) -> list[int] | None:
        """What the program must see; None for an error."""
        word, _, rest = sql.partition(" ")
        if word in ("savepoint", "rollback", "release"):
            return self._mark(word, rest.removeprefix("to "))
        if self.has_failed:
            return None
        try:
            self.toy.drawn = drawn
            rows = self.toy._result({"sql": sql}, read_only=False)["rows"]
            return [row[0] for row in rows]
        except Error:
            self.has_failed = True
            return None

    def _mark(self, word: str, name: str) -> list[int] | None:
        if self.has_failed and word != "rollback":
            return None
        if word == "savepoint":
            self.marks.append((name, dict(self.toy.rows)))
            return []
        found = [index for index, mark in enumerate(self.marks) if mark[0] == name]
        if not found:
            self.has_failed = True
            return None
        if word == "rollback":
            self.toy.rows, self.has_failed = dict(self.marks[found[-1]][1]), False
        del self.marks[found[-1] + (word == "rollback") :]
        return []


@settings(max_examples=examples(400))
@given(st.dictionaries(FIRST_KEYS, st.integers(0, 9)), st.lists(STEPS, max_size=14))
def test_a_program_sees_and_commits_what_it_would_in_one_real_transaction(
    rows: dict[str, int], steps: list[str]
) -> None:
    toy = Toy()
    toy.rows = dict(rows)
    program, reference = Program(toy), Reference(toy)
    for step in steps:
        drawn = toy.drawn
        try:
            seen: list[int] | None = program.run(step)
        except Error:
            seen = None
        assert (seen, program.session.unit.has_failed) == (reference.run(step, drawn), reference.has_failed)
    with suppress(TransactionError):
        program.commit()
    assert toy.rows == (rows if reference.has_failed else reference.toy.rows)


@settings(max_examples=examples(400))
@given(st.lists(STEPS, max_size=10), st.dictionaries(st.integers(0, 9), st.tuples(KEYS, st.integers(0, 9)), max_size=3))
def test_a_commit_that_succeeds_saw_the_state_that_it_changes(
    steps: list[str], changes: dict[int, tuple[str, int]]
) -> None:
    """Another program changes rows in between. What is committed is as if the whole program had run at its commit."""
    toy = Toy()
    toy.rows = {"a": 1}
    program = Program(toy)
    seen: list[tuple[str, int, Any]] = []
    for number, step in enumerate(steps):
        if number in changes:
            toy.rows[changes[number][0]] = changes[number][1]
        drawn = toy.drawn
        try:
            seen.append((step, drawn, program.run(step)))
        except Error:
            return
    reference = Reference(toy)
    rows = dict(toy.rows)
    writes = program.session.unit.has_writes
    try:
        program.commit()
    except Error:
        assert toy.rows == rows
        return
    if writes:
        kept = _not_rolled_back([step for step, _, _ in seen])
        for keeps, (step, drawn, result) in zip(kept, seen, strict=True):
            again = reference.run(step, drawn) or []
            # Without ORDER BY, the same rows in another order are the same result.
            assert not keeps or sorted(again) == sorted(result or [])
        assert toy.rows == reference.toy.rows


def test_the_toy_merges_inserts_and_runs_reads_that_write() -> None:
    toy = Toy()
    program = Program(toy)
    for step in ("insert a", "insert b", "select bump(b)", "insert c", "insert d"):
        program.run(step)
    program.commit()
    assert [(each["sql"], len(each["params"][0]) if "params" in each else 0) for each in toy.requests[-1][1]] == [
        ("restore", 2), ("select bump(b)", 0), ("restore", 1), ("restore", 1),
    ]  # fmt: skip
    assert toy.rows == {"a": 1, "b": 3, "c": 3, "d": 4}


def _not_rolled_back(steps: list[str]) -> list[bool]:
    """Which steps are not undone by a later ROLLBACK TO."""
    kept = [True] * len(steps)
    marks: list[tuple[str, int]] = []
    for index, step in enumerate(steps):
        word, name = step.split()[0], step.split()[-1]
        if word == "savepoint":
            marks.append((name, index))
        elif word in ("rollback", "release"):
            found = max(at for at, mark in enumerate(marks) if mark[0] == name)
            if word == "rollback":
                kept[marks[found][1] : index] = [False] * (index - marks[found][1])
            del marks[found + (word == "rollback") :]
    return kept
