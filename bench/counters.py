"""Counters of the data plane, read from its metrics. Each of its processes has a port of its own for them."""

import urllib.request
from collections.abc import Iterable


def lane_requests(ports: Iterable[int]) -> float:
    """How many requests the fast lane has answered, in all processes."""
    return sum(answered_by_lane(_metrics_of(port)) for port in ports)


def answered_by_lane(metrics: str) -> float:
    """How many requests took the lane and stayed on it, by the metrics of one process. 0 if there is no lane.

    A request that is handed over while it waits for a slot has not begun, and is subtracted all the same.
    """
    return _total(metrics, "plainsql_lane_requests_total") - _total(metrics, "plainsql_lane_handed_over_total")


def _total(metrics: str, name: str) -> float:
    """The sum of a counter over its labels."""
    samples = (line.rpartition(" ") for line in metrics.splitlines() if not line.startswith("#"))
    return sum(float(value) for sample, _, value in samples if sample.partition("{")[0] == name)


def _metrics_of(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        return str(response.read().decode())
