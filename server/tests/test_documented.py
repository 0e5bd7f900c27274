"""That the comparing of answers with the documents complains where it must."""

import json

import httpx
import pytest

from server.tests.documented import Documented

pytestmark = pytest.mark.unit

KEY_ID = "key_1"
ERROR = {"code": "key_not_found", "message": "x", "retryable": False, "outcome": "not_executed"}
FAILED = {"success": False, "error": ERROR, "request_id": "req_1"}
QUERY = {
    "success": True, "columns": [], "types": [], "rows": [], "row_count": 0, "truncated": False, "affected_rows": 0,
    "command": "SELECT", "timings": {"total_us": 1, "exec_us": 1}, "request_id": "req_1",
}  # fmt: skip


def check(plane: str, method: str, path: str, status: int, body: object, *, sent: object = None) -> None:
    request = httpx.Request(method, f"http://plane{path}", json=sent)
    Documented(plane).check(httpx.Response(status, json=body, request=request))


def test_documented_answers_pass() -> None:
    check("control", "GET", f"/v1/keys/{KEY_ID}", 404, FAILED)
    check("data", "POST", "/v1/query", 200, QUERY, sent={"sql": "select 1"})
    check("data", "GET", "/v1/requests/a/b", 404, {**FAILED, "error": {**ERROR, "code": "request_not_found"}})


def test_a_route_that_is_in_no_document_is_noticed() -> None:
    with pytest.raises(AssertionError, match="in no document"):
        check("data", "GET", "/forgotten", 200, {})


@pytest.mark.parametrize(
    ("plane", "method", "path"), [("control", "GET", f"/v1/keys/{KEY_ID}"), ("data", "POST", "/v1/query")]
)
def test_an_undocumented_status_or_field_is_detected_on_both_planes(plane: str, method: str, path: str) -> None:
    with pytest.raises(AssertionError, match="does not tell of 410"):
        check(plane, method, path, 410, FAILED)
    with pytest.raises(AssertionError, match="the document has"):
        check(plane, method, path, 404, {**FAILED, "forgotten": 1})


def test_an_undocumented_content_type_is_detected() -> None:
    request = httpx.Request("GET", "http://plane/health")
    with pytest.raises(AssertionError, match="text/plain is not documented"):
        Documented("data").check(httpx.Response(200, text="ok", request=request))


@pytest.mark.parametrize(
    "body",
    [
        {**QUERY, "forgotten": 1},
        {**QUERY, "timings": {"total_us": 1, "exec_us": 1, "forgotten_us": 1}},
        {name: value for name, value in QUERY.items() if name != "types"},
        {**QUERY, "row_count": "0"},
        {**QUERY, "success": False},
    ],
)
def test_an_undocumented_missing_or_mistyped_field_is_detected(body: object) -> None:
    with pytest.raises(AssertionError, match="the document has"):
        check("data", "POST", "/v1/query", 200, body)


def test_an_undocumented_error_code_is_detected() -> None:
    with pytest.raises(AssertionError, match="the document has"):
        check("control", "GET", f"/v1/keys/{KEY_ID}", 404, {**FAILED, "error": {**ERROR, "code": "name_taken"}})


def test_an_undocumented_option_or_field_that_was_sent_is_detected() -> None:
    with pytest.raises(AssertionError, match="alone"):
        check("data", "POST", "/v1/query?forgotten=1", 200, QUERY)
    with pytest.raises(AssertionError, match="the document has"):
        check("data", "POST", "/v1/query", 200, QUERY, sent={"sql": "select 1", "forgotten": json.dumps({})})


COLUMNS = {"columns": ["n"], "types": ["int4"], "request_id": "req_1"}
DONE = {name: QUERY[name] for name in ("row_count", "affected_rows", "truncated", "command", "timings")}


def check_events(*events: tuple[str, object]) -> None:
    text = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
    check_stream("text/event-stream", text)


def check_stream(content_type: str, text: str) -> None:
    request = httpx.Request("POST", "http://plane/v1/query", json={"sql": "select 1 as n"})
    headers = {"content-type": content_type}
    Documented("data").check(httpx.Response(200, content=text.encode(), headers=headers, request=request))


def test_an_undocumented_event_or_event_field_is_detected() -> None:
    check_events(("columns", COLUMNS), ("row", {"whatever": 1}), ("done", DONE))
    with pytest.raises(AssertionError, match="StreamColumns"):
        check_events(("columns", {**COLUMNS, "forgotten": 1}))
    with pytest.raises(AssertionError, match="StreamDone"):
        check_events(("columns", COLUMNS), ("done", {**DONE, "forgotten": 1}))
    with pytest.raises(AssertionError, match="the event forgotten"):
        check_events(("columns", COLUMNS), ("forgotten", {}))


def test_an_undocumented_field_of_the_first_or_last_line_is_detected() -> None:
    last = {"success": True, **DONE}
    check_stream("application/x-ndjson", f"{json.dumps(COLUMNS)}\n{json.dumps({'whatever': 1})}\n{json.dumps(last)}\n")
    with pytest.raises(AssertionError, match="StreamColumns"):
        check_stream("application/x-ndjson", f"{json.dumps({**COLUMNS, 'forgotten': 1})}\n{json.dumps(last)}\n")
    with pytest.raises(AssertionError, match="LastLine"):
        check_stream("application/x-ndjson", f"{json.dumps(COLUMNS)}\n{json.dumps({**last, 'forgotten': 1})}\n")
