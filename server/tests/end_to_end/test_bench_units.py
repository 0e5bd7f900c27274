"""`python -m bench units`, in short. What it says about speed means nothing here; what it counts does."""

import re
from collections.abc import Callable

import pytest

from bench import units
from bench.stack import described_stack
from plainsql.interactive import unit
from server.tests import programs
from server.tests.service import running_service

# The cap itself is measured by the benchmark.
_READS = 20


def counted(make: Callable[[int], units.Work], changes: int, made: list[int]) -> Callable[[int], units.Work]:
    """Notes by how much each unit changes the sum, if it is committed once."""

    def make_counted(rows: int) -> units.Work:
        made.append(changes)
        return make(rows)

    return make_counted


def test_costs_the_cap_and_the_rates_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.need("psql")
    made: list[int] = []
    for module in (unit, units):
        monkeypatch.setattr(module, "MAX_VERIFIED_READS", _READS)
    monkeypatch.setattr(units, "get_change", counted(units.get_change, 1, made))
    monkeypatch.setattr(units, "ten_statements", counted(units.ten_statements, 5, made))
    with running_service("--no-tls") as service:
        stack = described_stack(service.dev, range(0))
        stack.psql(
            f"set role {stack.owner_role}; create table pgbench_accounts (aid int primary key, abalance int not null);"
            " insert into pgbench_accounts select g, 0 from generate_series(1, 50) g"
        )
        lines = units.show(stack, units.Plan(1, 0.3, 2, reads=(2, 4), rows=50))
        changed = int(stack.psql("select sum(abalance) from pgbench_accounts"))
    printed = capsys.readouterr().out.splitlines()
    print("\n".join(printed))
    # Each insert and each read is rehearsed with all before it; no two inserts are adjacent.
    counts = [re.split(r"\s{2,}", line.strip())[:4] for line in printed[1:5]]
    costs = [["2", "5", "14"], ["4", "9", "44"]]
    assert counts == [[kind, *cost] for kind in ("the row", "a count") for cost in costs]
    assert f"has read {_READS + 1} times; at most {_READS}" in printed[6]
    assert [line.name for line in lines] == [
        f"{name}, {clients} at once" for name in ("get, change, commit", "10 statements") for clients in (1, 2)
    ]
    assert all(len(rates) == 1 and rates[0] > 0 for line in lines for rates in line.sides.values())
    # None is lost, and none is committed twice, on either side: those that opened the connections are among them.
    assert len(made) > 12
    assert changed == sum(made)
