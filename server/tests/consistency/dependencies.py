"""Which transaction must come before which, and why.

Owns the graph. Its edges are Adya's dependencies, and the order of the clock:
    ww  the second appended right after the first
    wr  the second read what the first appended last
    rw  the first read a list as it was before the second appended to it
    rt  the first had completed when the second began
Edges that follow from others are left out, so that there are a few for each transaction.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from server.tests.consistency.history import Outcome, Transaction
from server.tests.consistency.observations import Observations
from server.tests.consistency.orders import Orders

# Numbers to be combined: an edge between two transactions may be there for several reasons.
WW, WR, RW, RT = 1, 2, 4, 8
ANY = WW | WR | RW | RT
KINDS = {WW: "ww", WR: "wr", RW: "rw", RT: "rt"}

Reason = tuple[int, int | None, int | None]


class Graph:
    """Transactions by id, the edges between them by kind, and the list and values that each edge is there for."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.successors: dict[int, dict[int, int]] = {node: {} for node in nodes}
        self.reasons: dict[tuple[int, int, int], Reason] = {}

    def add(self, first: int | None, second: int | None, kind: int, reason: Reason | None = None) -> None:
        """Adds an edge between two transactions that took effect; others, and oneself, have no order."""
        if first == second or first not in self.successors or second not in self.successors:
            return
        targets = self.successors[first]
        targets[second] = targets.get(second, 0) | kind
        if reason is not None:
            self.reasons.setdefault((first, second, kind), reason)


def depend(found: Observations, orders: Orders) -> Graph:
    """The graph of the transactions that took effect."""
    committed = found.committed()
    graph = Graph(committed)
    _add_appends(graph, found, orders)
    _add_reads(graph, found, orders)
    _add_clock(graph, [found.transactions[number] for number in committed])
    return graph


def _add_appends(graph: Graph, found: Observations, orders: Orders) -> None:
    for key, values in orders.longest.items():
        for earlier, later in pairwise(values):
            graph.add(found.writers.get((key, earlier)), found.writers.get((key, later)), WW, (key, earlier, later))
        if values:
            for writer in orders.unread[key]:
                reason = (key, values[-1], found.appended[writer, key][-1])
                graph.add(found.writers.get((key, values[-1])), writer, WW, reason)


def _add_reads(graph: Graph, found: Observations, orders: Orders) -> None:
    for read in orders.agreeing:
        key, values, whole = read.key, read.values, orders.longest[read.key]
        last = values[-1] if values else None
        if last is not None:
            graph.add(found.writers.get((key, last)), read.reader, WR, (key, last, None))
        if len(values) < len(whole):
            missed = whole[len(values)]
            graph.add(read.reader, found.writers.get((key, missed)), RW, (key, last, missed))
        else:
            for writer in orders.unread[key]:
                graph.add(read.reader, writer, RW, (key, last, found.appended[writer, key][-1]))


def _add_clock(graph: Graph, transactions: Iterable[Transaction]) -> None:
    """Adds the order of the clock without what follows from the rest of it.

    While it goes through the moments, it keeps the frontier: those that have completed and are not before another
    one that has. They overlap each other, so that there are never more of them than clients.
    """
    times: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for transaction in transactions:
        times[transaction.invoked_ns][0].append(transaction.id)
        # What has no answer comes before nothing: it may take effect at any time.
        if transaction.outcome is Outcome.OK:
            times[transaction.completed_ns][1].append(transaction.id)
    frontier: dict[int, None] = {}
    before: dict[int, tuple[int, ...]] = {}
    for at_ns in sorted(times):
        began, ended = times[at_ns]
        # At one and the same moment, the one that begins is not after the one that ends.
        for number in began:
            before[number] = tuple(frontier)
            for earlier in before[number]:
                graph.add(earlier, number, RT)
        for number in ended:
            for earlier in before.pop(number):
                frontier.pop(earlier, None)
            frontier[number] = None
