"""What a request costs in a larger fleet: 1, 2 and 3 nodes, and 1, 2 and 3 cells.

There are three workloads. In the first, three nodes work all the time, each with the same load of its own, so that each
node and the machine are equally busy in every case. The cases differ in how many of the nodes belong to the measured
service, and on how many cells its databases are; each of the other nodes is a service of its own. In the second and the
third, the alias spreads one load over more and more nodes, so that each has less to do: a load that leaves one node
nearly idle, and one that keeps half of it busy. The result is the processor time per request, of the nodes and cells of
the measured service. Unlike time by the clock, it hardly depends on who else uses the machine.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import product
from statistics import median

from bench import bars
from bench.loads import check_one, wrk
from bench.nodes import BenchNode, directory_dsn, running_alias, running_node
from bench.processes import cpu_s
from bench.stack import Stack, running_stack

# Nodes and cells of the one service.
SHAPES = ((1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (3, 3))
_MOST = 3
# What a node serves, and on how many connections.
_DATABASES = 3
_CONNECTIONS = 8
_ROWS = 1_000
_SQL = "select double from numbers where n = $1"
_FILL = f"create table numbers as select n, n * 2 as double from generate_series(1, {_ROWS}) n"
_INDEX = "alter table numbers add primary key (n)"


class Kind(Enum):
    """A workload, and what each of its connections waits between two requests, in milliseconds."""

    A_LOAD_A_NODE = "each node has a load of its own", 22
    SPREAD_THIN = "the alias spreads one load over the nodes, which leaves one node nearly idle", 22
    SPREAD = "the alias spreads one load over the nodes, which keeps half of one node busy", 4

    def __init__(self, title: str, pause_ms: int) -> None:
        self.title = title
        self.pause_ms = pause_ms


@dataclass(frozen=True)
class Cost:
    """What requests took, in all."""

    per_second: float
    node_us: float
    cell_us: float

    @property
    def all_us(self) -> float:
        return self.node_us + self.cell_us


@dataclass(frozen=True)
class Fleet:
    """Three services with a cell each. The first also has the others' cells, and three nodes; they have one each."""

    cells: Sequence[Stack]
    nodes: Sequence[BenchNode]
    others: Sequence[BenchNode]
    # URLs of aliases of the first node, of the first two, and of all.
    aliases: Sequence[str]

    def idle_ms_per_s(self, seconds: float) -> float:
        """The processor time that an idle node takes."""
        before_s = [cpu_s(node.pid) for node in self.nodes]
        time.sleep(seconds)
        took_s = [cpu_s(node.pid) - before for node, before in zip(self.nodes, before_s, strict=True)]
        return median(took_s) / seconds * 1000

    def cost(self, kind: Kind, nodes: int, cells: int, seconds: float) -> Cost:
        """What a load on so many nodes and cells of the one service takes: the same on each node, or one for all."""
        spread = kind is not Kind.A_LOAD_A_NODE
        loads = self._one_load(nodes, cells) if spread else self._load_a_node(nodes, cells)
        before_s = self._took_s(nodes, cells)
        with ThreadPoolExecutor(_MOST) as running:
            rates = list(running.map(lambda load: load.run(kind.pause_ms, seconds), loads))
        node_s, cell_s = (after - before for after, before in zip(self._took_s(nodes, cells), before_s, strict=True))
        ours = sum(rates if spread else rates[:nodes])
        # A cell serves its own service, too, where that has a node at work.
        others = 0 if spread or nodes > 1 else sum(rates[nodes : nodes + cells - 1])
        return Cost(ours, node_s / (ours * round(seconds)) * 1e6, cell_s / ((ours + others) * round(seconds)) * 1e6)

    def _load_a_node(self, nodes: int, cells: int) -> "list[_Load]":
        """A database has one node, as behind the alias."""
        ours = [
            _Load(node.url, self.cells[0], [_name(database % cells, index, database) for database in range(_DATABASES)])
            for index, node in enumerate(self.nodes[:nodes])
        ]
        theirs = [
            _Load(node.url, stack, [_name(0, 0, database) for database in range(_DATABASES)])
            for node, stack in zip(self.others, self.cells[1:], strict=True)
        ]
        return [*ours, *theirs][:_MOST]

    def _one_load(self, nodes: int, cells: int) -> "list[_Load]":
        """The same databases and connections, however many nodes share them."""
        names = [_name(each % cells, index, each) for index in range(_MOST) for each in range(_DATABASES)]
        return [_Load(self.aliases[nodes - 1], self.cells[0], names, _MOST * _CONNECTIONS)]

    def _took_s(self, nodes: int, cells: int) -> tuple[float, float]:
        postgres = sum(cpu_s(cell.postgres_pid) for cell in self.cells[:cells])
        return sum(cpu_s(node.pid) for node in self.nodes[:nodes]), postgres


@dataclass(frozen=True)
class _Load:
    """Look-ups in some databases of a service, on one node or through an alias."""

    url: str
    service: Stack
    names: Sequence[str]
    connections: int = _CONNECTIONS

    def run(self, pause_ms: int, seconds: float) -> float:
        """How many were answered a second."""
        body = json.dumps({"sql": _SQL, "params": ["N"]}).replace('"N"', "%d")
        listed = ", ".join(f'"{name}"' for name in self.names)
        head = f"local names = {{{listed}}}\nfunction delay() return {pause_ms} end"
        # The alias looks only at the header.
        prelude = f'wrk.headers["X-Database"] = names[math.random(1, {len(self.names)})]'
        expression = f"string.format([==[{body}]==], math.random(1, {_ROWS}))"
        return wrk(
            f"{self.url}/v1/query", self.service.headers, expression, self.connections, seconds,
            prelude=prelude, head=head,
        ).per_second  # fmt: skip


def show(rounds: int, seconds: float) -> list[str]:
    """Measures, and prints what was found. Returns which figures miss their bars."""
    costs: dict[Kind, dict[tuple[int, int], list[Cost]]] = {kind: {shape: [] for shape in SHAPES} for kind in Kind}
    with running_fleet() as running:
        for kind, shape in product(Kind, SHAPES):
            # Connections are opened and statements prepared before it counts.
            running.cost(kind, *shape, 1)
        idle_ms = running.idle_ms_per_s(seconds)
        print(f"an idle node takes {idle_ms:.2f} ms of processor time a second")
        for _, kind, shape in product(range(rounds), Kind, SHAPES):
            costs[kind][shape].append(running.cost(kind, *shape, seconds))
    missed: list[str] = []
    for kind, found in costs.items():
        print(kind.title)
        missed += _print_costs(found, {} if kind is Kind.A_LOAD_A_NODE else bars.NODE_BARS)
    return missed


def _print_costs(costs: dict[tuple[int, int], list[Cost]], wanted: bars.Bars) -> list[str]:
    print("nodes  cells  requests/s  us of a cell  us of a node  from    to  beside 1 and 1  both beside 1 and 1")
    first = median(cost.node_us for cost in costs[SHAPES[0]])
    first_of_all = median(cost.all_us for cost in costs[SHAPES[0]])
    missed: list[str] = []
    for (nodes, cells), found in costs.items():
        of_nodes = [cost.node_us for cost in found]
        growth = median(cost.all_us for cost in found) / first_of_all
        # More cells are another matter: there are as many connections to each.
        its_bars = wanted if cells == 1 else {}
        missing = bars.missed({bars.TIMES_ONE_NODE: growth}, its_bars)
        print(
            f"{nodes:5}  {cells:5}  {median(cost.per_second for cost in found):10.0f}"
            f"  {median(cost.cell_us for cost in found):12.0f}  {median(of_nodes):12.0f}"
            f"  {min(of_nodes):4.0f}  {max(of_nodes):4.0f}  {median(of_nodes) / first:14.3f}  {growth:19.3f}"
            f"  {bars.verdict(missing, its_bars)}"
        )
        missed += missing
    return missed


@contextmanager
def running_fleet() -> Iterator[Fleet]:
    """Three services, and the nodes of all."""
    with ExitStack() as running:
        stacks = [running.enter_context(running_stack(1, 1, "--no-tls")) for _ in range(_MOST)]
        for stack in stacks[1:]:
            _make(stack, 0, 0)
        first = stacks[0]
        names = [first.psql("select name from cells", "plainsql_directory"), *(f"cell-{n}" for n in range(1, _MOST))]
        for cell, stack in enumerate(stacks):
            if cell:
                conninfo = f"host={stack.socket} port={stack.port}"
                _operate(first, "cell", "add", names[cell], "--conninfo", conninfo, "--admin-role", stack.superuser)
            for node in range(_MOST):
                _make(first, cell, node)
            # The next ones go to the next cell.
            _operate(first, "cell", "set", names[cell], "--state", "full")
        nodes = [running.enter_context(running_node(first)) for _ in range(_MOST)]
        others = [running.enter_context(running_node(stack)) for stack in stacks[1:]]
        aliases = [running.enter_context(running_alias(first, nodes[:count])) for count in range(1, _MOST + 1)]
        yield Fleet(stacks, nodes, others, aliases)


def _name(cell: int, node: int, database: int) -> str:
    return f"fleet-{cell}-{node}-{database}"


def _make(service: Stack, cell: int, node: int) -> None:
    """Makes the databases of a node that are on a cell."""
    for database in range(_DATABASES):
        name = _name(cell, node, database)
        check_one(f"{service.control_url}/v1/databases", service.headers, json.dumps({"name": name}))
        for sql in (_FILL, _INDEX):
            check_one(f"{service.data_url}/v1/query", service.headers, json.dumps({"sql": sql, "database": name}))


def _operate(service: Stack, *arguments: str) -> None:
    environment = {**os.environ, "PLAINSQL_DIRECTORY_DSN": directory_dsn(service)}
    command = [sys.executable, "-m", "plainsql_server", *arguments]
    subprocess.run(command, check=True, capture_output=True, env=environment)
