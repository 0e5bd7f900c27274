"""The shape of a failure, checked as a whole wherever a test meets one.

Owns what the contract says of every error body and of the headers beside it.
"""

import re
from typing import Any

import httpx

FIELDS = frozenset({
    "code", "message", "sqlstate", "detail", "hint", "position", "statement_index", "schema", "table", "column",
    "constraint", "retryable", "retry_after_ms", "outcome", "docs",
})  # fmt: skip
OUTCOMES = frozenset({"committed", "rolled_back", "not_executed", "unknown"})
QUERY_PATHS = frozenset({"/v1/query", "/query"})


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error of a response that must have this status and code; everything else about it must fit, too."""
    assert response.status_code == status, response.text
    body = check_shape(response)
    error: dict[str, Any] = body["error"]
    assert error["code"] == code, error
    return error


def check_shape(response: httpx.Response) -> dict[str, Any]:
    """The body of a failure, if it has the one shape that failures have."""
    body: dict[str, Any] = response.json()
    assert response.headers["content-type"] == "application/json"
    assert body["success"] is False
    assert body["request_id"] == response.headers["x-request-id"]
    _check_query_fields(response, body)
    _check_error(body["error"])
    _check_headers(response)
    return body


def _check_query_fields(response: httpx.Response, body: dict[str, Any]) -> None:
    answers_queries = response.request.method == "POST" and response.request.url.path in QUERY_PATHS
    expected = {"success", "error", "request_id"}
    if answers_queries:
        expected |= {"columns", "rows", "affected_rows", "timings"}
        assert (body["columns"], body["rows"], body["affected_rows"]) == ([], [], 0)
        assert set(body["timings"]) == {"total_us", "exec_us"}
        assert all(type(value) is int and value >= 0 for value in body["timings"].values())
    assert set(body) == expected


def _check_error(error: dict[str, Any]) -> None:
    assert set(error) <= FIELDS
    assert None not in error.values(), "a field without a value is left out"
    assert {"code", "message", "retryable", "outcome"} <= set(error)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error["code"])
    assert error["message"]
    assert error["outcome"] in OUTCOMES
    assert isinstance(error["retryable"], bool)


def _check_headers(response: httpx.Response) -> None:
    assert (response.headers.get("www-authenticate") == "Bearer") == (response.status_code == 401)
    assert ("retry-after" in response.headers) == (response.status_code in (429, 503))
    assert "server-timing" in response.headers
