"""Rehearsed transactions: what dry runs, digests and frozen INSERTs need beyond an ordinary transaction.

A client rehearses a transaction in dry runs, and finally sends it once with the digests of what it has read: either
every result is still the same, or nothing happens. See "Dry runs" in docs/reference/http.md.
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import RequestError, ServiceError
from plainsql_server.core.insert_text import MAX_LENGTH, InsertText, read_insert
from plainsql_server.core.loop_share import share_loop
from plainsql_server.data_plane.transaction_request import TransactionStatement
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.interrupt import InterruptReason
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.engine.execution.expectations import differs, twice, volatile_read
from plainsql_server.engine.execution.plan import ExpectedDigest, Plan
from plainsql_server.engine.execution.transaction import Attempt
from plainsql_server.engine.pool.pool import Lease
from plainsql_server.limits.tiers import Limits

# WITH is not among them, because it may contain an INSERT, UPDATE or DELETE.
_READS = frozenset(["SELECT", "VALUES", "TABLE"])
# The INSERTs that are frozen in one transaction may have this many characters in total.
_MAX_FROZEN_LENGTH = MAX_LENGTH
# Longer texts are read in a thread. After short ones with this many characters, other requests run.
_LONG = 1_000
_PAUSE_AFTER = 4_000
_MAX_REMEMBERED = 1_000
# A check whether a read is volatile takes at most a quarter of the time that is left, and is left out if that is short.
_MIN_CHECK_MS = 10
_MAX_CHECK_MS = 2_000


def check_statement_counts(
    statements: Sequence[TransactionStatement], limits: Limits, tier: str, commands: Sequence[str] | None = None
) -> None:
    """Raises RequestError if there are too many statements. Verified reads have a limit of their own.

    Before the commands of the statements are known, it refuses only what is too much in any case.
    """
    count = len(statements)
    if count <= limits.transaction_statements:
        return
    if count > limits.transaction_statements + limits.verified_reads:
        verified = 0
    elif commands is None:
        verified = sum(map(_is_verified, statements))
    else:
        verified = sum(command in _READS for command in compress(commands, map(_is_verified, statements)))
    if count - verified > limits.transaction_statements:
        raise RequestError(
            "too_many_statements",
            f"The transaction has {count - verified} statements; the {tier} tier allows"
            f" {limits.transaction_statements}, and {limits.verified_reads} verified reads.",
        )
    if commands is not None and verified > limits.verified_reads:
        raise RequestError(
            "too_many_verified_reads",
            f"The transaction has {verified} verified reads; the {tier} tier allows {limits.verified_reads}.",
            hint="Commit more often, or read more rows at once.",
        )


def _is_verified(statement: TransactionStatement) -> bool:
    """Whether a statement, if it is a read, only checks that an earlier result is still the same."""
    return isinstance(statement.expect, ExpectedDigest) and not statement.rows


def check_may_span(statements: Sequence[TransactionStatement], *, dry_run: bool) -> None:
    """Raises RequestError if a transaction in several databases asks for what only one database can give."""
    if dry_run or any(each.is_hashed for each in statements):
        raise RequestError(
            "rehearsal_spans_databases",
            "Dry runs and digests need all statements in one database; this transaction names several.",
        )


async def read_inserts(statements: Sequence[TransactionStatement]) -> list[InsertText | str | None]:
    """What must be known to freeze the statements, for each that is to be frozen."""
    left, before_pause, read = _MAX_FROZEN_LENGTH, _PAUSE_AFTER, list[InsertText | str | None]()
    for statement in statements:
        length = len(statement.sql)
        if not statement.freeze:
            read.append(None)
        elif length > left:
            read.append("too_long")
        elif length > _LONG:
            left -= length
            read.append(await asyncio.to_thread(read_insert, statement.sql))
        else:
            left, before_pause = left - length, before_pause - length
            read.append(_read(statement.sql))
            if before_pause <= 0:
                before_pause = _PAUSE_AFTER
                await share_loop()
    return read


_read = lru_cache(_MAX_REMEMBERED)(read_insert)


async def check_not_volatile(lease: Lease, catalog: Catalog, plan: Plan, index: int, deadline: Deadline) -> None:
    """Raises StatementError if a statement whose result has changed gives another one each time that it runs.

    The lease is of no further use: it is interrupted if the check takes too long.
    """
    expect = plan.steps[index].expect
    assert isinstance(expect, ExpectedDigest)
    check_ms = min(_MAX_CHECK_MS, int(deadline.left_s() * 1000 / 4))
    if check_ms < _MIN_CHECK_MS:
        return
    lease.interrupt_after(check_ms, InterruptReason.DEADLINE)
    try:
        results = await Attempt(lease, catalog, twice(plan, index)).run()
    except (ServiceError, ResultTooLarge):
        # Then it's a conflict, as far as is known.
        return
    if differs(results[-3].digests, results[-1].digests, expect):
        raise volatile_read(index)
