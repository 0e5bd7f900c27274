"""The bars: what the benchmarks must reach with two workers and 32 connections, by workload.

    missed(figures, BARS["lookup, $1"])
    missed(figures, spread_bars("1,000, Zipf", one_p99_ms))

`BARS` are those of `python -m bench statements`; the others are those of `databases`, `fleet`, `opening`, `floods` and
`branches`.
A figure that has no bar is reported only. Processor time is the figure to hold on to: rates depend on what else the
machine does.
"""

from collections.abc import Mapping
from types import MappingProxyType

Bars = Mapping[str, float]

# The columns of the tables. Those in `_AT_MOST` must not exceed their bars; others must reach them.
OF_ENGINE, OF_RQLITE, LANE = "of pgbench", "of rqlite", "lane"
SERVICE_US, ENGINE_US, ONE_CLIENT_US = "service us", "engine us", "one client +us"
# Of `databases`: rates and processor time compared with one database, or with the same load before the cell had more.
OF_ONE, TIMES_ONE, P99_MS, OPENED, CELL_MB = "of one", "times one's us", "p99 ms", "opened/s", "cell MB"
OF_FEWER, TIMES_FEWER, MADE = "of fewer", "times fewer's us", "made/s"
# Of `fleet`: processor time compared with one node.
TIMES_ONE_NODE = "times one node's us"
# Of `opening`.
OPENING_MS, BLOCKED_MS = "both ms", "loop blocked ms"
# Of `floods`: a quiet customer's lookups, compared with those without the flood.
TIMES_ALONE, LONGEST_WAIT_MS, FAILED = "times alone's p99", "longest wait ms", "failed"
# Of `branches`: the longest request of a reader or a writer of the parent while a branch is made.
STOP_S = "stop s"
_AT_MOST = (
    SERVICE_US, ENGINE_US, ONE_CLIENT_US, TIMES_ONE, P99_MS, OPENED, CELL_MB, TIMES_FEWER, TIMES_ONE_NODE,
    OPENING_MS, BLOCKED_MS, TIMES_ALONE, LONGEST_WAIT_MS, FAILED, STOP_S,
)  # fmt: skip

BARS: Mapping[str, Bars] = MappingProxyType({
    "lookup, $1": {OF_ENGINE: 0.50, OF_RQLITE: 1.1, SERVICE_US: 25, ONE_CLIENT_US: 40, LANE: 0.95},
    "lookup, literal": {OF_ENGINE: 0.48, OF_RQLITE: 0.9, SERVICE_US: 45, ONE_CLIENT_US: 70, LANE: 0.95},
    "update, $1": {OF_ENGINE: 0.68, OF_RQLITE: 1.5, SERVICE_US: 40, ONE_CLIENT_US: 40, LANE: 0.95},
    "TPC-B transaction": {OF_ENGINE: 0.70, OF_RQLITE: 1.0, LANE: 0.95},
})  # fmt: skip
BARS_WITH_TLS: Mapping[str, Bars] = MappingProxyType({
    "lookup, $1": {OF_ENGINE: 0.37, LANE: 0.95},
    "lookup, literal": {OF_ENGINE: 0.37, LANE: 0.95},
    "update, $1": {OF_ENGINE: 0.58, LANE: 0.95},
    "TPC-B transaction": {LANE: 0.95},
})  # fmt: skip

# Of a connection to a cell over TLS, with a client certificate and ECDSA keys, where one over the socket takes 5 ms.
OPENING_BARS: Bars = MappingProxyType({OPENING_MS: 8, BLOCKED_MS: 0.5})

_THOUSAND: Bars = {OF_ONE: 0.50, TIMES_ONE: 2.0, OPENED: 5, CELL_MB: 2_500}
SPREAD_BARS: Mapping[str, Bars] = MappingProxyType({
    "100, Zipf": {OF_ONE: 0.70, TIMES_ONE: 2.0, OPENED: 0},
    "1,000, Zipf": _THOUSAND,
    "1,000, uniform": _THOUSAND,
})  # fmt: skip
# The 99th percentile with 1,000 databases: so much, or so many times that of one database.
_P99_MS, _P99_TIMES_ONE = 100, 3
# Unused databases must not slow down the busy ones.
GROWN_BARS: Bars = MappingProxyType({OF_FEWER: 0.80, TIMES_FEWER: 1.20})
CREATION_BARS: Bars = MappingProxyType({MADE: 10})
FLOOD_BARS: Bars = MappingProxyType({TIMES_ALONE: 3, LONGEST_WAIT_MS: 100, FAILED: 0})
# By the megabytes of rows in the parent.
BRANCH_BARS: Mapping[int, Bars] = MappingProxyType({10: {STOP_S: 1, FAILED: 0}, 1_000: {FAILED: 0}})
NODE_BARS: Bars = MappingProxyType({TIMES_ONE_NODE: 1.10})


def spread_bars(name: str, one_p99_ms: float) -> Bars:
    """Those of a load, where the 99th percentile of one database is this. Empty if the load has none."""
    bars = SPREAD_BARS.get(name, {})
    return {**bars, P99_MS: max(_P99_MS, _P99_TIMES_ONE * one_p99_ms)} if bars is _THOUSAND else bars


def missed(figures: Mapping[str, float], bars: Bars) -> list[str]:
    """The figures that miss their bars. One that was not measured misses none."""
    return [
        f"{column} {figures[column]:.2f} ({bar})"
        for column, bar in bars.items()
        if column in figures and _is_missed(column, figures[column], bar)
    ]


def verdict(missed_bars: list[str], bars: Bars) -> str:
    """How a line of a table ends."""
    return f"below the bar: {', '.join(missed_bars)}" if missed_bars else "ok" if bars else "no bars"


def _is_missed(column: str, figure: float, bar: float) -> bool:
    return figure > bar if column in _AT_MOST else figure < bar
