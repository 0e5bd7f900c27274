"""A statement may change its session's settings, also those that say how values are written: no answer breaks of it."""

import json
from typing import Any

import pytest

from server.tests.end_to_end.error_shape import check_shape
from server.tests.end_to_end.transactions import fresh_table, post
from server.tests.events import EventParser
from server.tests.service import Service

ZONES = ['<","x":"+00>0', "<\n\n:x\n\n+00>0", "<\\+00>0"]
SET_ZONE = (
    "select set_config('datestyle', 'SQL', false) as style, set_config('timezone', $1, false) as zone,"
    " now() as time, array[now()] as times"
)
NAMES = ["style", "zone", "time", "times"]
IN_LATIN1 = "select set_config('client_encoding', 'LATIN1', false), {} as value"


def ask(service: Service, sql: str, accept: str, *params: Any) -> Any:
    return service.call(
        "POST", "/v1/query", headers={"Accept": accept}, json={"sql": sql, "params": list(params)}
    )  # fmt: skip


@pytest.mark.parametrize("zone", ZONES)
def test_a_zone_is_a_part_of_its_value(service: Service, zone: str) -> None:
    (row,) = ask(service, SET_ZONE, "application/json", zone).json()["rows"]
    assert list(row) == NAMES
    # The engine shows ten characters of a zone, as capitals.
    assert zone[1:-2][:10].upper() in row["time"]
    (line,) = ask(service, SET_ZONE, "application/x-ndjson", zone).text.splitlines()[:1]
    assert isinstance(json.loads(line), dict)
    events = EventParser().feed(ask(service, SET_ZONE, "text/event-stream", zone).content)
    assert [event.type for event in events] == ["columns", "row", "done"]
    assert list(events[1].content) == NAMES


@pytest.mark.parametrize("value", ["'é'::text", "to_json('é'::text)", "to_jsonb('é'::text)", "array['é']"])
def test_text_that_is_not_utf8_is_rejected(service: Service, value: str) -> None:
    error = check_shape(ask(service, IN_LATIN1.format(value), "application/json"))["error"]
    assert error["code"] == "untranslatable_character"
    response = ask(service, IN_LATIN1.format(value), "text/event-stream")
    response.content.decode()
    assert "untranslatable_character" in response.text


def test_a_column_name_that_is_not_utf8_is_rejected(service: Service) -> None:
    table = fresh_table(service, '"é" int')
    answer = post(service, "set client_encoding to latin1", f"select * from {table}").json()
    assert answer["error"]["code"] == "untranslatable_character"
    assert service.query(f"select * from {table}")["columns"] == ["é"]
