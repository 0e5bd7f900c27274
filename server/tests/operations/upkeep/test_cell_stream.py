"""Doctor's check of a cell's stream, on measures of our own. `test_streamed_cell.py` has a real receiver."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plainsql_server.engine.admin.login_rules import find_receiver
from plainsql_server.engine.admin.measures import ARCHIVE_WITHIN_S, STREAM_WITHIN_S, StreamMeasures
from plainsql_server.operations.findings import Grade
from plainsql_server.operations.upkeep.cell_stream import receiver_login, stream
from server.tests.operations.upkeep.test_cell_upkeep import grades

pytestmark = pytest.mark.unit

_ROOT = Path(__file__).resolve().parents[4]
_RECEIVED = StreamMeasures(is_received=True, is_lost=False, has_slot=True, lag_bytes=16_000, lag_s=0.02)


@pytest.mark.parametrize(
    ("measures", "grade", "words"),
    [
        (_RECEIVED, Grade.GOOD, "0.0 MB of 0.0 s"),
        (replace(_RECEIVED, lag_s=STREAM_WITHIN_S), Grade.GOOD, "0.0 MB of 5.0 s"),
        (replace(_RECEIVED, lag_bytes=50_000_000, lag_s=5.1), Grade.WARNING, "slow. 50.0 MB of 5.1 s"),
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


def test_the_alerts_and_the_guide_say_what_doctor_does() -> None:
    rules = (_ROOT / "deploy/prometheus/plainsql-alerts.yml").read_text()
    for metric, within_s in (("cell_archive", ARCHIVE_WITHIN_S), ("directory_archive", ARCHIVE_WITHIN_S),
                             ("cell_stream", STREAM_WITHIN_S)):  # fmt: skip
        assert re.search(rf"plainsql_{metric}_lag_seconds\) > {within_s:.0f}\n", rules), metric
        row = rf"`plainsql_{metric}_lag_seconds`.* over {within_s:.0f} seconds"
        assert re.search(row, (_ROOT / "docs/backups.md").read_text()), metric


_TENANTS = (["+plainsql_tenants"], ["all"], "all", "trust")
_RECEIVES = (["plainsql_stream"], ["replication"], "10.0.0.1", "scram-sha-256")
_KEPT_OUT = (["plainsql_stream"], ["all", "replication"], "all", "reject")


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([_TENANTS], []),
        ([_RECEIVES, _KEPT_OUT, _TENANTS], []),
        ([_RECEIVES, _TENANTS, _KEPT_OUT], ["does not reject plainsql_stream"]),
        ([_RECEIVES, _TENANTS], ["does not reject plainsql_stream"]),
        ([_TENANTS, (*_RECEIVES[:3], "cert")], ["with a certificate", "does not reject plainsql_stream"]),
        ([(*_RECEIVES[:3], "cert"), _KEPT_OUT], ["with a certificate"]),
    ],
)
def test_a_receiver_whose_login_may_open_databases_is_reported(rules: list[tuple[Any, ...]], found: list[str]) -> None:
    named = [dict(zip(("roles", "databases", "address", "method"), rule, strict=True)) for rule in rules]
    findings = [*receiver_login("cell eu-1", find_receiver(named))]
    assert grades(findings) == [Grade.BROKEN] * len(found)
    assert all(words in each.found for words, each in zip(found, findings, strict=True))
