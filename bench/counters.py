"""Counters of the data plane, read from its metrics. Each of its processes has a port of its own for them."""

import urllib.request
from collections.abc import Iterable


def lane_requests(ports: Iterable[int]) -> float:
    """How many requests the fast lane has answered, in all processes."""
    return sum(_lane_requests_of(port) for port in ports)


def _lane_requests_of(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    counters = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    # Without a fast lane there are no such counters.
    begun = float(counters.get("plainsql_lane_requests_total", 0))
    return begun - float(counters.get("plainsql_lane_handed_over_total", 0))
