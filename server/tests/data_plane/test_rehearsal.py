"""Rehearsed transactions: what counts as a verified read, and that reading many INSERTs lets others run."""

import asyncio
from collections.abc import Awaitable

import pytest

from plainsql_server.core.errors import RequestError
from plainsql_server.core.insert_text import InsertText
from plainsql_server.data_plane.classification import classify
from plainsql_server.data_plane.rehearsal import check_statement_counts, read_inserts
from plainsql_server.data_plane.transaction import _classify
from plainsql_server.data_plane.transaction_request import TransactionRequest, TransactionStatement
from plainsql_server.engine.execution.plan import ExpectedDigest
from plainsql_server.limits.tiers import TIERS

pytestmark = pytest.mark.unit

LIMITS = TIERS["free"]
EXPECT = ExpectedDigest("0" * 32, is_ordered=True)


def check(sql: str, count: int) -> None:
    statements = [TransactionStatement(sql, expect=EXPECT, rows=False)] * count
    check_statement_counts(statements, LIMITS, "free")
    check_statement_counts(statements, LIMITS, "free", [classify(sql).command] * count)


@pytest.mark.parametrize("sql", ["select 1", "/* a */ values (1)", "table t"])
def test_reads_with_an_expected_digest_are_verified(sql: str) -> None:
    check(sql, LIMITS.verified_reads)
    with pytest.raises(RequestError, match="verified reads; the free") as refused:
        check(sql, LIMITS.verified_reads + 1)
    assert refused.value.code == "too_many_verified_reads"


@pytest.mark.parametrize(
    "sql", ["with w as (delete from t returning 1) select 1 from w", "update t set n = 1", "call p()"]
)
def test_what_may_write_is_no_verified_read(sql: str) -> None:
    check(sql, LIMITS.transaction_statements)
    with pytest.raises(RequestError) as refused:
        check(sql, LIMITS.transaction_statements + 1)
    assert refused.value.code == "too_many_statements"


async def runs_of_another(work: Awaitable[object]) -> int:
    """How often another task runs while the work is done."""
    runs, is_done = 0, False

    async def other() -> None:
        nonlocal runs
        while not is_done:
            runs += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await work
    is_done = True
    await task
    return runs


INSERTS = [
    TransactionStatement(f"insert into t values ({number}, '{'x' * 900}')", freeze=True) for number in range(100)
]


def test_others_run_while_many_short_inserts_are_read() -> None:
    assert asyncio.run(runs_of_another(read_inserts(INSERTS))) >= 18
    assert all(isinstance(each, InsertText) for each in asyncio.run(read_inserts(INSERTS)))


def test_others_run_while_many_short_statements_are_classified() -> None:
    assert asyncio.run(runs_of_another(_classify(TransactionRequest(INSERTS), LIMITS, "free"))) >= 18
