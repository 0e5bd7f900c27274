"""The bars: what `python -m bench statements` must reach with two workers and 32 connections, by workload,
and what `python -m bench opening` must.

    missed(figures, BARS["lookup, $1"])

A figure that has no bar is reported only. Processor time is the figure to hold on to: rates depend on what else the
machine does.
"""

from collections.abc import Mapping
from types import MappingProxyType

Bars = Mapping[str, float]

# The columns of the table. A figure in µs must not exceed its bar; others must reach it.
OF_ENGINE, OF_RQLITE, LANE = "of pgbench", "of rqlite", "lane"
SERVICE_US, ENGINE_US, ONE_CLIENT_US = "service us", "engine us", "one client +us"
# The columns of `python -m bench opening`.
OPENING_MS, BLOCKED_MS = "both ms", "loop blocked ms"
_AT_MOST = (SERVICE_US, ENGINE_US, ONE_CLIENT_US, OPENING_MS, BLOCKED_MS)

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


def missed(figures: Mapping[str, float], bars: Bars) -> list[str]:
    """The figures that miss their bars. One that was not measured misses none."""
    return [
        f"{column} {figures[column]:.2f} ({bar})"
        for column, bar in bars.items()
        if column in figures and _is_missed(column, figures[column], bar)
    ]


def _is_missed(column: str, figure: float, bar: float) -> bool:
    return figure > bar if column in _AT_MOST else figure < bar
