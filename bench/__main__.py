"""`python -m bench`: point lookups and updates through the service, beside pgbench on the same engine."""

import argparse
from statistics import median

from bench.loads import ROWS_PER_SCALE, WORKLOADS, Workload, pgbench_rate, wrk_rate
from bench.stack import Stack, running_stack

PGBENCH_CLIENTS = 16
HTTP_CONNECTIONS = 32


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; the median counts (default 5)")
    parser.add_argument("--seconds", type=float, default=5, help="length of each measurement (default 5)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the data plane (default 2)")
    parser.add_argument("--scale", type=int, default=10, help="pgbench's scale, 100,000 rows each (default 10)")
    arguments = parser.parse_args()
    with running_stack(arguments.workers, arguments.scale, "--no-tls") as stack:
        print(f"{'':18}{'engine/s':>10}{'service/s':>11}{'ratio':>8}   ratios of the rounds")
        for workload in WORKLOADS:
            _measure(stack, workload, arguments)


def _measure(stack: Stack, workload: Workload, arguments: argparse.Namespace) -> None:
    rows = arguments.scale * ROWS_PER_SCALE
    pairs = []
    for _ in range(arguments.rounds):
        engine = pgbench_rate(stack, workload, rows, PGBENCH_CLIENTS, arguments.seconds)
        service = wrk_rate(stack, workload, rows, HTTP_CONNECTIONS, arguments.seconds)
        pairs.append((engine, service))
    engine_rate, service_rate = median(e for e, _ in pairs), median(s for _, s in pairs)
    ratios = [service / engine for engine, service in pairs]
    listed = " ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    print(f"{workload.name:18}{engine_rate:10.0f}{service_rate:11.0f}{median(ratios):8.2f}   {listed}", flush=True)


main()
