"""Doctor's check of a cell's stream, on measures of our own. `test_streamed_cell.py` has a real receiver."""

from dataclasses import replace

import pytest

from plainsql_server.engine.admin.measures import StreamMeasures
from plainsql_server.operations.findings import Grade
from plainsql_server.operations.upkeep.cell_stream import stream
from server.tests.operations.upkeep.test_cell_upkeep import grades

pytestmark = pytest.mark.unit

_RECEIVED = StreamMeasures(is_received=True, is_lost=False, has_slot=True, lag_bytes=16_000, lag_s=0.02)


@pytest.mark.parametrize(
    ("measures", "grade", "words"),
    [
        (_RECEIVED, Grade.GOOD, "0.0 MB of 0.0 s"),
        (replace(_RECEIVED, lag_bytes=50_000_000, lag_s=40.0), Grade.WARNING, "slow. 50.0 MB of 40.0 s"),
        (replace(_RECEIVED, is_received=False, lag_bytes=0, lag_s=0.0), Grade.WARNING, "is not being received"),
        (replace(_RECEIVED, is_received=False, is_lost=True, lag_bytes=None), Grade.BROKEN, "is lost: it was away"),
        (replace(_RECEIVED, is_received=False, is_lost=True, has_slot=False), Grade.BROKEN, "has no slot"),
    ],
)
def test_a_stream_that_stands_still_is_reported(measures: StreamMeasures, grade: Grade, words: str) -> None:
    findings = [*stream("cell eu-1", measures)]
    assert grades(findings) == [grade]
    assert words in findings[0].found


def test_a_cell_without_a_stream_has_no_finding() -> None:
    assert [*stream("cell eu-1", None)] == []
