"""A million rows of four columns as streams, beside psql: `make bench ARGS=streams`, with the least that is promised.

Only in full size, PLAINSQL_TEST_STREAM_RATE_ROUNDS=5: a few rounds beside other tests would say nothing.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from server.tests.load import size

pytestmark = pytest.mark.timing

ROUNDS = size("PLAINSQL_TEST_STREAM_RATE_ROUNDS", 1)
LEAST = {"stream, events": 0.6, "stream, NDJSON": 0.7}
_CHECKOUT = Path(__file__).parents[3]


@pytest.mark.full
def test_streams_keep_up_with_psql(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "streams", "--rounds", str(ROUNDS), "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=_CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout)
    ratios = {each["name"]: ratio(each["sides"]) for each in json.loads((tmp_path / "bench.json").read_bytes())}
    assert {name: ratios[name] for name, least in LEAST.items() if ratios[name] < least} == {}


def ratio(sides: dict[str, list[float]]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(ours / theirs for ours, theirs in zip(sides["PlainSQL"], sides["psql"], strict=True))
