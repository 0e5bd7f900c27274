"""What more databases cost: the same lookups spread over 1, 100 and 1,000 databases of one cell.

    tenants = new_tenants(stack, organizations, databases, tier)
    lines, missed = show(stack, tenants, plan)

Each round measures all spreads one after the other, each after a warm-up, so that what else happens to the machine
happens to all of them. The figures that count are compared with one database in the same round. If the cell is to have
more databases than are busy, the others are made afterwards, and the same loads are measured again.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import bars
from bench.report import Line
from bench.spreads import Figures, Load, Spread, spreads_over
from bench.stack import Stack
from bench.tenants import Made, Tenant, fill, make
from plainsql_server.operations.files.sizing import shortest_naptime_s

# How long the load before a measurement lasts, compared with it.
_WARM_UP_SHARE = 0.5


@dataclass(frozen=True)
class Plan:
    """What to measure: `databases` on the cell, `busy` of which are used."""

    databases: int
    busy: int
    connections: int
    rounds: int
    seconds: float
    # Past the alias.
    is_direct: bool = False
    # The bars are those of the default settings.
    has_bars: bool = True


@dataclass
class Found:
    """What was measured of one spread, round by round."""

    spread: Spread
    rounds: list[Figures] = field(default_factory=list)

    def all(self, figure: str) -> list[float]:
        """Those of all rounds, by the name of a field of `Figures`."""
        return [float(getattr(each, figure)) for each in self.rounds]

    def middle(self, figure: str) -> float:
        return median(self.all(figure))

    def ratios(self, figure: str, base: "Found") -> list[float]:
        """A figure compared with that of another spread, round by round, in order of size."""
        return sorted(ours / its for ours, its in zip(self.all(figure), base.all(figure), strict=True))

    def figures(self, one: "Found") -> dict[str, float]:
        """By column, those that have bars, compared with one database."""
        return {
            bars.OF_ONE: median(self.ratios("per_second", one)),
            bars.TIMES_ONE: median(self.ratios("all_us", one)),
            bars.P99_MS: self.middle("p99_ms"),
            bars.OPENED: self.middle("opened_per_s"),
            bars.CELL_MB: self.middle("cell_mb"),
        }

    def grown_figures(self, fewer: "Found") -> dict[str, float]:
        """By column, compared with the same load before there were more databases. Rounds of two runs aren't pairs."""
        return {
            bars.OF_FEWER: self.middle("per_second") / fewer.middle("per_second"),
            bars.TIMES_FEWER: self.middle("all_us") / fewer.middle("all_us"),
        }

    def lines(self, databases: int) -> list[Line]:
        """For the report."""
        name = f"lookups over {self.spread} of {databases:,} databases"
        figures = {"1/s": "per_second", "us": "all_us", "ms": "p99_ms", "opened/s": "opened_per_s", "MB": "cell_mb"}
        return [Line(name, unit, {"PlainSQL": self.all(figure)}) for unit, figure in figures.items()]


def show(stack: Stack, tenants: Sequence[Tenant], plan: Plan) -> tuple[list[Line], list[str]]:
    """Makes the tenants' databases, measures, and prints what was found. Returns it, and what misses its bar."""
    url = stack.data_url if plan.is_direct else stack.alias_url
    if url is None:
        raise SystemExit("there is no alias, because nginx isn't installed; use --direct")
    busy, quiet = tenants[: plan.busy], tenants[plan.busy :]
    missed = _print_made(make(stack, busy))
    _print_empty(stack, busy[0])
    fill(url, busy)
    load = Load(stack, url, busy, plan.connections)
    found = measure(load, plan.rounds, plan.seconds)
    missed += print_found(found, has_bars=plan.has_bars)
    lines = [line for each in found for line in each.lines(len(busy))]
    if quiet:
        _lengthen_naptime(stack, len(tenants))
        _make_quiet(stack, quiet)
        grown = measure(load, plan.rounds, plan.seconds)
        print_found(grown, has_bars=False)
        missed += _print_grown(grown, found, plan)
        lines += [line for each in grown for line in each.lines(len(tenants))]
    return lines, missed


def _lengthen_naptime(stack: Stack, databases: int) -> None:
    """Sets what `doctor` would ask for."""
    _set(stack, autovacuum_naptime=f"'{shortest_naptime_s(databases)}s'")


def _set(stack: Stack, **settings: str) -> None:
    for name, value in settings.items():
        stack.psql(f"ALTER SYSTEM SET {name} = {value}", "postgres")
    stack.psql("SELECT pg_reload_conf()", "postgres")


def _make_quiet(stack: Stack, tenants: Sequence[Tenant]) -> None:
    """Without waiting for the disk, since there are many. Afterwards, nothing is left to be written."""
    _set(stack, fsync="off", max_wal_size="'12GB'")
    made = make(stack, tenants)
    _set(stack, fsync="DEFAULT", max_wal_size="DEFAULT")
    stack.psql("CHECKPOINT", "postgres")
    os.sync()
    print(f"made {made.databases:,} more databases that stay quiet, {made.per_second:.1f}/s without fsync", flush=True)


def measure(load: Load, rounds: int, seconds: float) -> list[Found]:
    """All spreads over the databases of the load, so many times."""
    load.check()
    found = [Found(spread) for spread in spreads_over(len(load.tenants))]
    for _ in range(rounds):
        for each in found:
            load.warm_up(each.spread, max(1.0, seconds * _WARM_UP_SHARE))
            each.rounds.append(load.measure(each.spread, seconds))
    return found


# The columns of the table: heading, figure and digits.
_TIMES = (("p50 ms", "median_ms", 1), (bars.P99_MS, "p99_ms", 1))
_COSTS = (
    ("data us", "data_us", 0), ("alias us", "alias_us", 0), ("engine us", "engine_us", 0), ("all us", "all_us", 0),
)  # fmt: skip
_CELL = (
    (bars.OPENED, "opened_per_s", 1), ("connections", "connections", 0), ("data MB", "data_mb", 0),
    (bars.CELL_MB, "cell_mb", 0),
)  # fmt: skip


def print_found(found: Sequence[Found], *, has_bars: bool) -> list[str]:
    """Prints the table, and returns which figures miss their bars. The first line is that of one database."""
    times, costs, cell = ("  ".join(column for column, _, _ in columns) for columns in (_TIMES, _COSTS, _CELL))
    print(f"{'databases':15}  lookups/s  {bars.OF_ONE:>19}  {times}  {costs}  {bars.TIMES_ONE}  {cell}")
    one = found[0]
    missed: list[str] = []
    for each in found:
        wanted = bars.spread_bars(str(each.spread), one.middle("p99_ms")) if has_bars else {}
        figures = each.figures(one)
        missing = bars.missed(figures, wanted)
        rates = each.ratios("per_second", one)
        print(
            f"{each.spread!s:15}  {each.middle('per_second'):9.0f}"
            f"  {median(rates):.2f} ({rates[0]:.2f} to {rates[-1]:.2f})  {_shown(each, _TIMES)}  {_shown(each, _COSTS)}"
            f"  {figures[bars.TIMES_ONE]:{len(bars.TIMES_ONE)}.2f}  {_shown(each, _CELL)}"
            f"  {bars.verdict(missing, wanted)}",
            flush=True,
        )
        missed += missing
    return missed


def _shown(found: Found, columns: Sequence[tuple[str, str, int]]) -> str:
    return "  ".join(f"{found.middle(figure):{len(column)}.{digits}f}" for column, figure, digits in columns)


def _print_grown(grown: Sequence[Found], fewer: Sequence[Found], plan: Plan) -> list[str]:
    """Compares the loads on all busy databases with those before there were more."""
    wanted: Mapping[str, float] = bars.GROWN_BARS if plan.has_bars else {}
    missed: list[str] = []
    for now, before in zip(grown, fewer, strict=True):
        if now.spread.databases < plan.busy:
            continue
        figures = now.grown_figures(before)
        missing = bars.missed(figures, wanted)
        print(
            f"{now.spread}, {plan.databases:,} instead of {plan.busy:,} databases:"
            f" {figures[bars.OF_FEWER]:.2f} of the rate, {figures[bars.TIMES_FEWER]:.2f} times the processor time"
            f"  {bars.verdict(missing, wanted)}",
            flush=True,
        )
        missed += missing
    return missed


def _print_made(made: Made) -> list[str]:
    missed = bars.missed({bars.MADE: made.slowest_per_second}, bars.CREATION_BARS)
    print(
        f"made {made.databases:,} databases, {made.per_second:.1f}/s,"
        f" the slowest quarter {made.slowest_per_second:.1f}/s, {made.cpu_ms:.0f} ms of processor time each"
        f"  {bars.verdict(missed, bars.CREATION_BARS)}",
        flush=True,
    )
    return missed


def _print_empty(stack: Stack, tenant: Tenant) -> None:
    """What a database takes on disk in which nothing is yet."""
    named = f"select engine_name from databases where name = '{tenant.database}'"
    name = stack.psql(named, "plainsql_directory")
    found = f"select oid, pg_database_size(oid) from pg_database where datname = '{name}'"
    oid, size_bytes = stack.psql(found, "postgres").split("|")
    files = len(list(Path(stack.psql("show data_directory", "postgres"), "base", oid).iterdir()))
    print(f"an empty database takes {int(size_bytes) / 1e6:.1f} MB in {files} files")
