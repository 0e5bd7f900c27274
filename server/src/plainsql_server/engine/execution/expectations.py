"""Checks what a request expects of a result, and finds out whether a read that changed could ever stay the same.

A result that has another digest than expected is a conflict with another transaction, unless the statement is volatile:
it gives another result each time that it runs. Run the plan made by `twice` to find out.
"""

from collections.abc import Mapping
from dataclasses import replace

from plainsql_server.core.errors import Diagnosis, StatementError
from plainsql_server.core.result import Digests
from plainsql_server.engine.connection.sqlstate import condition_name
from plainsql_server.engine.execution.plan import Count, ExpectedDigest, Plan, TransactionStep

# What PostgreSQL reports for a conflict: this is one, too.
_SERIALIZATION_FAILURE = "40001"


def check_expectation(index: int, step: TransactionStep, counts: Mapping[Count, int], digests: Digests | None) -> None:
    """Raises StatementError if the step's result is not what the request expects."""
    expect = step.expect
    if expect is None:
        return
    if isinstance(expect, ExpectedDigest):
        assert digests is not None
        if expect.wanted != (digests.ordered if expect.is_ordered else digests.multiset):
            raise _stale_read(index)
    elif counts[expect.count] != expect.wanted:
        raise StatementError(
            "expectation_failed",
            f"Expected {expect.count.value} {expect.wanted}, got {counts[expect.count]}."
            " The transaction was rolled back.",
            statement_index=index,
        )


def _stale_read(index: int) -> StatementError:
    return StatementError(
        condition_name(_SERIALIZATION_FAILURE),
        "The result is no longer the one that was expected. The transaction was rolled back.",
        hint="Start again from the first read. If it fails each time, the result depends on the time.",
        diagnosis=Diagnosis(sqlstate=_SERIALIZATION_FAILURE),
        retryable=True,
        is_stale_read=True,
        statement_index=index,
    )


def volatile_read(index: int) -> StatementError:
    """The error for a statement whose result differs from itself."""
    return StatementError(
        "volatile_read",
        "The statement gives another result each time that it runs, so its result can't be verified."
        " The transaction was rolled back.",
        hint="Run it in a request of its own. If only the order differs, add ORDER BY or expect a multiset_digest.",
        statement_index=index,
    )


def twice(plan: Plan, index: int) -> Plan:
    """A dry run of a plan up to a step, which runs twice on the same data. Its results are the last and third last."""
    before = [replace(step, expect=None, digest=False, rows=False, freeze=None) for step in plan.steps[:index]]
    step = replace(plan.steps[index], expect=None, digest=True, rows=False, freeze=None)
    again = [TransactionStep("savepoint plainsql_again"), step, TransactionStep("rollback to plainsql_again"), step]
    # The sets of the plan are about its own steps: what this one learns must not change how it runs again.
    return replace(
        plan,
        steps=[*before, *again],
        record=None,
        dry_run=True,
        check_deferred=False,
        fresh=set(),
        unfrozen=set(),
    )


def differs(first: Digests | None, second: Digests | None, expect: ExpectedDigest) -> bool:
    """Whether two results of a statement differ in what is expected of them."""
    assert first is not None
    assert second is not None
    return first.ordered != second.ordered if expect.is_ordered else first.multiset != second.multiset
