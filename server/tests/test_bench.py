"""`python -m bench`: every workload has bars, and a figure that misses one is named; its counters and its arithmetic.

`end_to_end/test_bench_databases.py` runs a short form of `python -m bench databases`.
"""

from collections import Counter

import pytest

from bench.bars import (
    BARS,
    BARS_WITH_TLS,
    CELL_MB,
    LANE,
    OF_ENGINE,
    OF_FEWER,
    OF_ONE,
    OPENED,
    P99_MS,
    SERVICE_US,
    SPREAD_BARS,
    TIMES_FEWER,
    TIMES_ONE,
    missed,
    spread_bars,
)
from bench.counters import answered_by_lane
from bench.databases import Found
from bench.spreads import UNIFORM, Figures, Spread, spreads_over
from bench.tenants import slowest_rate
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


def test_a_database_is_chosen_by_zipfs_law() -> None:
    chosen = Counter(Spread(100).choices(100_000))
    assert set(chosen) == set(range(100))
    # The sum of 1/k up to 100 is 5.187.
    assert chosen[0] / 100_000 == pytest.approx(1 / 5.187, rel=0.05)
    assert chosen[0] / chosen[1] == pytest.approx(2, rel=0.05)
    assert chosen[0] / chosen[9] == pytest.approx(10, rel=0.15)


def test_a_database_is_chosen_uniformly() -> None:
    chosen = Counter(Spread(100, UNIFORM).choices(100_000))
    assert set(chosen) == set(range(100))
    assert max(chosen.values()) < 1.2 * min(chosen.values())


def test_choices_are_the_same_each_time() -> None:
    assert Spread(1_000).choices() == Spread(1_000).choices()
    assert set(Spread(1_000).choices()) == set(Spread(1_000, UNIFORM).choices()) == set(range(1_000))
    assert set(Spread(1).choices(10)) == {0}


def test_a_round_has_one_database_then_a_hundred_then_all() -> None:
    assert list(map(str, spreads_over(1_000))) == ["1", "100, Zipf", "1,000, Zipf", "1,000, uniform"]
    assert set(map(str, spreads_over(1_000))) - {"1"} == set(SPREAD_BARS)
    assert list(map(str, spreads_over(20))) == ["1", "20, Zipf", "20, uniform"]


def figures(per_second: float, all_us: float, p99_ms: float = 10.0, opened_per_s: float = 0.0) -> Figures:
    return Figures(per_second, 5.0, p99_ms, 50.0, 30.0, 60.0, all_us, opened_per_s, 32.0, 150.0, 250.0)


def test_figures_are_medians_and_ratios_are_those_of_the_rounds() -> None:
    one = Found(Spread(1), [figures(1_000, 100), figures(2_000, 100), figures(4_000, 100)])
    many = Found(Spread(100), [figures(500, 150, 30, 1), figures(1_800, 250, 20, 0), figures(2_800, 200, 40, 9)])
    assert many.ratios("per_second", one) == [0.5, 0.7, 0.9]
    assert many.figures(one) == {OF_ONE: 0.7, TIMES_ONE: 2.0, P99_MS: 30, OPENED: 1, CELL_MB: 250}
    assert many.grown_figures(one) == {OF_FEWER: 0.9, TIMES_FEWER: 2.0}


def test_with_a_hundred_databases_no_connection_is_opened() -> None:
    bars = spread_bars("100, Zipf", 10.0)
    reached = {OF_ONE: 0.7, TIMES_ONE: 2.0, OPENED: 0.0, P99_MS: 1_000.0, CELL_MB: 9_000.0}
    assert missed(reached, bars) == []
    assert missed({**reached, OPENED: 0.25}, bars) == ["opened/s 0.25 (0)"]


@pytest.mark.parametrize(("one_p99_ms", "limit_ms"), [(10.0, 100.0), (50.0, 150.0)])
def test_with_a_thousand_databases_the_slowest_may_take_three_times_as_long_or_100_ms(
    one_p99_ms: float, limit_ms: float
) -> None:
    for name in ("1,000, Zipf", "1,000, uniform"):
        bars = spread_bars(name, one_p99_ms)
        reached = {OF_ONE: 0.5, TIMES_ONE: 2.0, OPENED: 5.0, P99_MS: limit_ms, CELL_MB: 2_500.0}
        assert missed(reached, bars) == []
        for column, figure in {OF_ONE: 0.49, TIMES_ONE: 2.1, OPENED: 5.2, P99_MS: limit_ms + 1, CELL_MB: 2_501}.items():
            assert len(missed({**reached, column: figure}, bars)) == 1


def test_other_spreads_have_no_bars() -> None:
    assert spread_bars("1", 10.0) == spread_bars("20, Zipf", 10.0) == {}


def test_a_rate_is_sustained_if_the_slowest_quarter_has_it() -> None:
    assert slowest_rate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == 1.0
    assert slowest_rate([1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 11.0, 12.0]) == pytest.approx(2 / 6)
    assert slowest_rate([0.5, 2.0]) == 1.0
