"""The checker: a history in, every class of anomaly that it shows out.

Owns the verdict. It is sound and, for what reads reveal, complete: each finding is a contradiction that no order of
the transactions explains, and a history in which reads show the order of all appends has a finding if there is no
such order that agrees with the clock. One finding stands for each knot of transactions and class.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from server.tests.consistency.anomalies import Anomaly, AnomalyClass
from server.tests.consistency.cycles import circular, returning
from server.tests.consistency.dependencies import ANY, RT, RW, WR, WW, Graph, depend
from server.tests.consistency.history import Outcome, Transaction, require_well_formed
from server.tests.consistency.observations import observe
from server.tests.consistency.orders import order
from server.tests.consistency.stories import Search


@dataclass(frozen=True)
class Report:
    """What was found, and in how much."""

    outcomes: Counter[Outcome]
    edge_count: int
    anomalies: tuple[Anomaly, ...]

    @property
    def kinds(self) -> set[AnomalyClass]:
        return {anomaly.kind for anomaly in self.anomalies}

    def counts(self) -> dict[str, int]:
        """How many findings of each class there are."""
        return dict(Counter(anomaly.kind.name for anomaly in self.anomalies))

    def describe(self, limit: int = 5) -> str:
        """The first findings, for people."""
        return "\n".join(map(str, self.anomalies[:limit])) or "no anomalies"


def check(history: Iterable[Transaction]) -> Report:
    """Judges a history. Raises MalformedHistory if it is none."""
    transactions = list(history)
    require_well_formed(transactions)
    found = observe(transactions)
    orders = order(found)
    graph = depend(found, orders)
    anomalies = [*found.anomalies, *orders.anomalies, *_cycles(graph, found.transactions)]
    outcomes = Counter(transaction.outcome for transaction in transactions)
    return Report(outcomes, sum(map(len, graph.successors.values())), tuple(anomalies))


def _cycles(graph: Graph, transactions: dict[int, Transaction]) -> list[Anomaly]:
    """Every class of cycles in every knot. What is no knot with all edges is none with fewer."""
    anomalies: list[Anomaly] = []
    for knot in circular(graph.successors, ANY):
        for part in circular(graph.successors, WW | WR | RW, knot):
            anomalies += _dependency_cycles(Search(graph, part, transactions))
        search = Search(graph, knot, transactions)
        anomalies += search.show(AnomalyClass.REAL_TIME, search.edges_only_of(RT), RT, ANY)
    return anomalies


def _dependency_cycles(search: Search) -> list[Anomaly]:
    anomalies: list[Anomaly] = []
    for part in search.parts(WW):
        anomalies += part.show(AnomalyClass.G0, part.edges_only_of(WW), WW, WW)
    for part in search.parts(WW | WR):
        anomalies += part.show(AnomalyClass.G1C, part.edges_only_of(WR), WR, WW | WR)
    missed = search.edges_only_of(RW)
    single = returning(search.graph.successors, WW | WR, missed, search.knot)
    several = [edge for edge in missed if edge not in single]
    anomalies += search.show(AnomalyClass.G_SINGLE, [edge for edge in missed if edge in single], RW, WW | WR)
    anomalies += search.show(AnomalyClass.G2_ITEM, several, RW, WW | WR | RW)
    return anomalies
