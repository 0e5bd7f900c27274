"""The bars of `python -m bench`: every workload has some, and a figure that misses one is named; and its counters."""

import pytest

from bench.bars import BARS, BARS_WITH_TLS, LANE, OF_ENGINE, SERVICE_US, missed
from bench.counters import answered_by_lane
from bench.workloads import WORKLOADS

pytestmark = pytest.mark.unit

SOME_BARS = {OF_ENGINE: 0.5, SERVICE_US: 25.0}


def test_every_workload_has_bars() -> None:
    names = [workload.name for workload in WORKLOADS]
    assert list(BARS) == names
    assert list(BARS_WITH_TLS) == names


def test_a_ratio_must_reach_its_bar_and_a_time_must_not_exceed_it() -> None:
    assert missed({OF_ENGINE: 0.5, SERVICE_US: 25.0}, SOME_BARS) == []
    assert missed({OF_ENGINE: 0.49, SERVICE_US: 25.0}, SOME_BARS) == ["of pgbench 0.49 (0.5)"]
    assert missed({OF_ENGINE: 0.6, SERVICE_US: 25.1}, SOME_BARS) == ["service us 25.10 (25.0)"]


def test_what_was_not_measured_or_has_no_bar_misses_none() -> None:
    assert missed({SERVICE_US: 20.0, LANE: 0.0}, SOME_BARS) == []


def test_a_request_that_was_handed_over_was_not_answered_by_the_lane() -> None:
    metrics = """
        # TYPE plainsql_lane_requests_total counter
        plainsql_lane_requests_total 100.0
        plainsql_lane_handed_over_total{reason="slow"} 3.0
        plainsql_lane_handed_over_total{reason="error"} 2.0
        plainsql_lane_passed_total{reason="head"} 7.0
    """
    assert answered_by_lane(metrics.replace(" " * 8, "")) == 95
    assert answered_by_lane("plainsql_requests_total 4.0") == 0
