"""The plan that finds out whether a read is volatile."""

import pytest

from plainsql_server.core.insert_text import read_insert
from plainsql_server.engine.execution.expectations import twice
from plainsql_server.engine.execution.plan import ExpectedDigest, Plan, TransactionStep

pytestmark = pytest.mark.unit


def test_running_a_step_twice_changes_nothing_about_the_plan_itself() -> None:
    sql = "insert into t values (1)"
    expect = ExpectedDigest("0" * 32, is_ordered=True)
    steps = [TransactionStep(sql, freeze=read_insert(sql)), TransactionStep(sql, expect=expect, freeze="with_clause")]
    plan = Plan(steps, dry_run=True, fresh={0}, unfrozen={1})
    again = twice(plan, 1)
    assert [step.freeze for step in again.steps] == [None] * 5
    assert (again.fresh, again.unfrozen) == (set(), set())
    again.fresh.add(2)
    again.unfrozen.add(3)
    assert (plan.fresh, plan.unfrozen) == ({0}, {1})
    assert plan.steps == steps
