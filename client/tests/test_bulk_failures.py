"""Loads of many rows that fail, and whose clean-up fails as well: the first error is the one that counts."""

from collections.abc import Iterator
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import plainsql
from client.tests.toy_service import finish
from plainsql import bulk
from plainsql.command.batches import Batch
from plainsql.command.importing import Plan, _drop_if_empty, _load, _move
from plainsql.command.progress import Progress
from plainsql.command.transfers import Column
from plainsql.dbapi import DatabaseError
from plainsql.dbapi.groups import run_in_groups
from plainsql.errors import EngineError, NetworkError, StatementError
from plainsql.transport.protocol import Options

pytestmark = pytest.mark.unit

LOST = NetworkError("The response was lost.", outcome="unknown", idempotency_key="k")


class FailingCore:
    """Stores batches. The response to the move is lost, and after that the service is unreachable."""

    def query(self, sql: str, *_: Any) -> Iterator[Any]:
        if sql.startswith("drop"):
            raise EngineError({"code": "engine_unavailable", "outcome": "not_executed"}, status=503)
        yield from ()

    def transaction(self, statements: list[dict[str, Any]], *_: Any) -> Iterator[Any]:
        yield from ()
        if len(statements) == 2:
            raise LOST


def test_the_error_of_a_bulk_insert_is_that_of_the_move() -> None:
    rows = bulk.Rows("t", ({"name": "x" * 100_000} for _ in range(40)))
    with pytest.raises(NetworkError) as caught:
        finish(bulk.insert_rows(FailingCore(), rows, None, Options()))  # type: ignore[arg-type]  # all that it uses of one
    assert (caught.value is LOST, caught.value.outcome) == (True, "unknown")


class FailingClient:
    """The same for `plainsql import`."""

    def query(self, sql: str, *_: Any) -> None:
        if sql.startswith("drop"):
            raise EngineError({"code": "engine_unavailable", "outcome": "not_executed"}, status=503)

    def transaction(self, **_: Any) -> Any:
        def run() -> None:
            raise LOST

        return SimpleNamespace(add=lambda *_, **__: None, run=run)


def test_the_error_of_an_import_is_that_of_the_move(capsys: pytest.CaptureFixture[str]) -> None:
    batches = iter([Batch("1", 1, 1, 1), Batch("2", 1, 2, 1)])
    plan = Plan("t", [Column("n", "int8")], batches, is_csv=True)
    with pytest.raises(NetworkError) as caught:
        _load(FailingClient(), plan, Progress("Importing"))  # type: ignore[arg-type]  # all that it uses of one
    assert caught.value is LOST
    _drop_if_empty(FailingClient(), "t")  # type: ignore[arg-type]  # all that it uses of one
    assert "Table t stays: The response was lost.\n" in capsys.readouterr().err


class LostWhileLocating(FailingClient):
    """The move violates a constraint. After that, the service is unreachable."""

    def __init__(self, violation: StatementError) -> None:
        gone = EngineError({"code": "connection_lost", "message": "It was lost."}, status=503)
        self.gone, self.errors = gone, chain([violation], repeat(gone))

    def query(self, *_: Any, **__: Any) -> None:
        raise self.gone

    def transaction(self, **_: Any) -> Any:
        def run() -> None:
            raise next(self.errors)

        return SimpleNamespace(add=lambda *_, **__: None, run=run)


@pytest.mark.parametrize("sqlstate", ["23514", "23505"])
def test_an_error_while_the_faulty_row_is_located_blames_no_row(sqlstate: str) -> None:
    violation = StatementError({"code": "violation", "sqlstate": sqlstate}, status=200)
    plan = Plan("t", [Column("n", "int8")], iter(()), is_csv=True)
    with pytest.raises(StatementError) as caught:
        _move(LostWhileLocating(violation), plan, bulk.Stage(plan.target), 100)  # type: ignore[arg-type]  # all that it uses of one
    assert caught.value is violation


class SecondFails:
    """Commits one transaction; the next one fails."""

    def __init__(self) -> None:
        self.done = 0

    def run_transaction(self, builder: plainsql.Transaction) -> Any:
        self.done += 1
        if self.done == 2:
            raise StatementError(
                {"code": "unique_violation", "sqlstate": "23505", "outcome": "rolled_back"}, status=200
            )
        return SimpleNamespace(results=[SimpleNamespace(affected_rows=1) for _ in builder.statements])


def test_an_error_after_a_commit_does_not_say_that_nothing_was_written() -> None:
    statements = [("update t set n = $1", ["ä" * (1 << 20)])] * 2
    with pytest.raises(DatabaseError) as caught:
        run_in_groups(SecondFails(), statements, lambda _: None)  # type: ignore[arg-type]  # all that it uses of one
    assert (caught.value.outcome, len(caught.value.__notes__)) == ("unknown", 1)
    # Documents have a size, too.
    documents = [("update t set doc = $1", [{"a": ["x" * (2 << 20)]}])] * 2
    with pytest.raises(DatabaseError):
        run_in_groups(SecondFails(), documents, lambda _: None)  # type: ignore[arg-type]  # all that it uses of one


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        ([1.0, None, -3.0], "[1, None, -3]"), ([1.5, None, 2.0], "[1.5, None, 2.0]"),
        ([-0.0, 1.0], "[-0.0, 1.0]"), ([2.0**53, 1.0], "[9007199254740992.0, 1.0]"),
    ],
)  # fmt: skip
def test_integers_that_pandas_made_floats_are_integers_again(values: list[Any], sent: str) -> None:
    _, rows = bulk.frame_rows(pd.DataFrame({"n": values}))
    assert repr([row[0] for row in rows]) == sent
