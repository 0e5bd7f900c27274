"""The workloads: the same statements on every side, serializable on every side.

    for workload in WORKLOADS:
        loads.service(stack, workload, scale, connections, seconds)

Each request draws its numbers anew, from `number_ranges(scale)`. In the body of a request, `<aid>` stands for the
number `aid`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

ROWS_PER_SCALE = 100_000
SCALE = 10
# With fewer branches, most transactions would only wait for each other.
_TRANSACTION_SCALE = 50
# What the service sets on every connection. Without it, most of pgbench's serializable transactions would conflict.
PLANNER = "-c random_page_cost=1.1 -c cpu_tuple_cost=0.03"


@dataclass(frozen=True)
class Statement:
    """A statement: its text, with `{}` for each number, and the numbers' names."""

    sql: str
    numbers: tuple[str, ...]

    def for_pgbench(self) -> str:
        return self.sql.format(*(f":{name}" for name in self.numbers)) + ";\n"

    def for_service(self) -> dict[str, object]:
        marks = (f"${at}" for at in range(1, len(self.numbers) + 1))
        return {"sql": self.sql.format(*marks), "params": [f"<{name}>" for name in self.numbers]}

    def for_rqlite(self) -> list[str]:
        return [self.sql.format(*("?" for _ in self.numbers)), *(f"<{name}>" for name in self.numbers)]

    def with_literals(self) -> str:
        return self.sql.format(*(f"<{name}>" for name in self.numbers))


@dataclass(frozen=True)
class Post:
    """A request: its path, and its body before the numbers are drawn."""

    path: str
    body: object


@dataclass(frozen=True)
class Workload:
    """What pgbench runs, and the requests that ask the others for the same."""

    name: str
    script: str
    # pgbench's query mode, which is the fair counterpart of how the service is asked.
    mode: str
    service: Post
    rqlite: Post
    # Options of pgbench's connections.
    options: str = ""
    # pgbench's, unless another one is wanted.
    scale: int = SCALE


def number_ranges(scale: int) -> dict[str, tuple[int, int]]:
    """The smallest and the largest of the numbers to draw, as in pgbench's own script."""
    return {
        "aid": (1, scale * ROWS_PER_SCALE), "tid": (1, scale * 10), "bid": (1, scale), "delta": (-5000, 5000),
    }  # fmt: skip


_LOOKUP = Statement("select abalance from pgbench_accounts where aid = {}", ("aid",))
_UPDATE = Statement("update pgbench_accounts set abalance = abalance + 1 where aid = {}", ("aid",))
_TRANSACTION: Sequence[Statement] = (
    Statement("update pgbench_accounts set abalance = abalance + {} where aid = {}", ("delta", "aid")),
    _LOOKUP,
    Statement("update pgbench_tellers set tbalance = tbalance + {} where tid = {}", ("delta", "tid")),
    Statement("update pgbench_branches set bbalance = bbalance + {} where bid = {}", ("delta", "bid")),
    Statement(
        "insert into pgbench_history (tid, bid, aid, delta, mtime) values ({}, {}, {}, {}, current_timestamp)",
        ("tid", "bid", "aid", "delta"),
    ),
)

STATEMENTS: Sequence[Workload] = (
    Workload(
        "lookup, $1",
        _LOOKUP.for_pgbench(),
        "prepared",
        Post("/v1/query", _LOOKUP.for_service()),
        Post("/db/query?level=none", [_LOOKUP.for_rqlite()]),
    ),
    Workload(
        "lookup, literal",
        _LOOKUP.for_pgbench(),
        "extended",
        Post("/v1/query", {"sql": _LOOKUP.with_literals()}),
        Post("/db/query?level=none", [_LOOKUP.with_literals()]),
    ),
    Workload(
        "update, $1",
        _UPDATE.for_pgbench(),
        "prepared",
        Post("/v1/query", _UPDATE.for_service()),
        Post("/db/execute", [_UPDATE.for_rqlite()]),
    ),
)
# pgbench's own transaction (TPC-B like). Conflicts are tried again on every side: by pgbench (`--max-tries`), and by
# PlainSQL for its callers; rqlite has one writer and no conflicts.
TRANSACTION = Workload(
    "TPC-B transaction",
    f"begin;\n{''.join(each.for_pgbench() for each in _TRANSACTION)}end;\n",
    "prepared",
    Post("/v1/transaction", {"statements": [each.for_service() for each in _TRANSACTION]}),
    Post("/db/request?transaction", [each.for_rqlite() for each in _TRANSACTION]),
    options=PLANNER,
    scale=_TRANSACTION_SCALE,
)
WORKLOADS = (*STATEMENTS, TRANSACTION)
