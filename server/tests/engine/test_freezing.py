"""Freezing an INSERT: which rows are kept, and how many."""

from collections.abc import Sequence
from typing import cast

import pytest
from psycopg.pq.abc import PGresult

from plainsql_server.core.insert_text import InsertText, read_insert
from plainsql_server.core.result import FrozenInsert
from plainsql_server.engine.execution.freezing import Freezing
from plainsql_server.engine.execution.plan import ResultReference

pytestmark = pytest.mark.unit


class Answer:
    """Rows as libpq holds them."""

    def __init__(self, *rows: Sequence[bytes | None]) -> None:
        self._rows = rows
        self.ntuples = len(rows)
        self.nfields = len(rows[0])

    def get_value(self, row: int, column: int) -> bytes | None:
        return self._rows[row][column]


def freezing_of(reason: bytes | None) -> Freezing:
    insert = read_insert("insert into t values (1)")
    assert isinstance(insert, InsertText)
    freezing = Freezing(insert)
    freezing.take_facts(cast("PGresult", Answer([reason, b"public", b"t", b"n", b"f", b"f", b"f"])))
    return freezing


def take(freezing: Freezing, *texts: bytes, left_bytes: int) -> int:
    return freezing.take_rows(cast("PGresult", Answer(*[[text] for text in texts])), left_bytes)


def test_rows_are_kept_up_to_the_limit() -> None:
    freezing = freezing_of(None)
    assert take(freezing, b"(1)", b"(2)", left_bytes=6) == 6
    frozen = freezing.frozen()
    assert isinstance(frozen, FrozenInsert)
    assert (frozen.rows, frozen.size_bytes) == (["(1)", "(2)"], 6)


def test_rows_beyond_the_limit_are_not_kept_and_give_back_what_was() -> None:
    freezing = freezing_of(None)
    assert take(freezing, b"(1)", b"(2)", left_bytes=10) == 6
    assert take(freezing, b"(3)", b"(4)", left_bytes=4) == -6
    assert freezing.frozen() == "too_large"
    assert take(freezing, b"(5)", left_bytes=10) == 0
    assert freezing.frozen() == "too_large"


def test_rows_that_cannot_be_frozen_are_not_kept() -> None:
    freezing = freezing_of(b"triggers")
    assert take(freezing, b"(1)", left_bytes=10) == 0
    assert freezing.frozen() == "triggers"


def test_under_triggers_an_insert_is_repeated_with_what_it_generated() -> None:
    insert = read_insert("insert into t (n) values ($1), ($2) returning *")
    assert isinstance(insert, InsertText)

    def frozen(*texts: bytes, params: Sequence[bytes | ResultReference] = (b"1", b'"x"')) -> FrozenInsert | str:
        freezing = Freezing(insert)
        columns = [(b"id", b"t"), (b"n", b"t"), (b'"V"', b"t"), (b"w", b"f")]
        facts = [[b"triggers", b"public", b"t", name, b"f", b"t", is_generated] for name, is_generated in columns]
        freezing.take_facts(cast("PGresult", Answer(*facts)))
        take(freezing, *texts, left_bytes=100)
        return freezing.frozen(params)

    made = frozen(b"(1)", b"(2)")
    assert isinstance(made, FrozenInsert)
    assert made.sql.startswith('insert into t (n, id, "V") OVERRIDING SYSTEM VALUE values ($1, ')
    assert (made.rows, made.mergeable, made.before) == (["(1)", "(2)"], False, [b"1", b'"x"'])
    # A row that the trigger left out, and a parameter that another request doesn't understand.
    assert frozen(b"(1)") == "triggers"
    assert frozen(b"(1)", b"(2)", params=[b"1", ResultReference(0, "0.row_count")]) == "triggers"
