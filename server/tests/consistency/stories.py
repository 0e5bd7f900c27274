"""From a knot of transactions to one finding that people can follow: a short cycle, edge by edge.

Owns the choice of the cycle and its telling.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from server.tests.consistency.anomalies import Anomaly, AnomalyClass
from server.tests.consistency.cycles import circular, shortest_path
from server.tests.consistency.dependencies import KINDS, RT, WR, WW, Graph
from server.tests.consistency.history import Transaction

# Of the edges that lie on a cycle, so many are tried for the shortest one to show.
_TRIED_EDGES = 50

Step = tuple[int, int, int]


@dataclass(frozen=True)
class Search:
    """A knot of transactions each of which must come before each other, and what is looked for in it."""

    graph: Graph
    knot: list[int]
    transactions: dict[int, Transaction]

    def parts(self, kinds: int) -> "Iterator[Search]":
        """The knots that remain with edges of these kinds only."""
        for part in circular(self.graph.successors, kinds, self.knot):
            yield Search(self.graph, part, self.transactions)

    def edges_only_of(self, kind: int) -> list[tuple[int, int]]:
        """The edges in the knot that are there for no plainer reason; kinds are numbered from the plainest."""
        inside = frozenset(self.knot)
        return [
            (node, target)
            for node in self.knot
            for target, mask in self.graph.successors[node].items()
            if mask & -mask == kind and target in inside
        ]

    def show(
        self, kind: AnomalyClass, closing: list[tuple[int, int]], closing_kind: int, others: int
    ) -> Iterator[Anomaly]:
        """One finding if any edge closes a cycle: that edge and a way back over others. The shortest of some."""
        paths = [
            shortest_path(self.graph.successors, others, second, first, self.knot)
            for first, second in closing[:_TRIED_EDGES]
        ]
        if paths:
            path = min(paths, key=len)
            steps = [(path[-1], path[0], closing_kind)]
            for first, second in pairwise(path):
                mask = self.graph.successors[first][second] & others
                steps.append((first, second, mask & -mask))
            yield self._tell(kind, _without_detours(steps), len(closing))

    def _tell(self, kind: AnomalyClass, steps: list[Step], closing: int) -> Anomaly:
        members = tuple(first for first, _, _ in steps)
        lines = [self.transactions[number].describe() for number in members]
        lines += [tell_step(self.graph, *step) for step in steps]
        lines.append(f"({closing} such edges in a knot of {len(self.knot)} transactions)")
        return Anomaly(kind, members, "\n".join(lines))


def _without_detours(steps: list[Step]) -> list[Step]:
    """Joins steps of the clock that follow each other: who had completed first had completed for the last, too."""
    # Start after a step of another kind, so that nothing to join lies across the ends. A clock alone has no cycle.
    start = next(place for place, step in enumerate(steps) if step[2] != RT) + 1
    joined: list[Step] = []
    for first, second, kind in [*steps[start:], *steps[:start]]:
        if joined and kind == RT and joined[-1][2] == RT:
            joined[-1] = (joined[-1][0], second, RT)
        else:
            joined.append((first, second, kind))
    return joined


def tell_step(graph: Graph, first: int, second: int, kind: int) -> str:
    """Why one comes before the other, in a line."""
    arrow = f"T{first} -{KINDS[kind]}-> T{second}:"
    if kind == RT:
        return f"{arrow} T{first} had completed when T{second} began"
    key, earlier, later = graph.reasons[first, second, kind]
    if kind == WW:
        return f"{arrow} list {key} has {earlier} of T{first} before {later} of T{second}"
    if kind == WR:
        return f"{arrow} T{second} read {earlier} of T{first} in list {key}"
    seen = "empty" if earlier is None else f"up to {earlier}"
    return f"{arrow} T{first} read list {key} {seen}, without {later} of T{second}"
