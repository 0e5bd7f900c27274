"""What POST /sql makes of errors: the status that the driver can read, and an SQLSTATE for each."""

import json

import pytest

from plainsql_server.core.errors import EngineError, LimitError, RequestError, StatementError
from plainsql_server.http.data.neon_failures import SQLSTATES, SqlFailures
from plainsql_server.http.server.error_codes import CODES

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("error", "status", "sqlstate"),
    [
        (StatementError("serialization_failure", "a conflict"), 400, "XX000"),
        (RequestError("multiple_statements", "two"), 400, "42601"),
        (LimitError("statement_timeout", "too slow"), 400, "57014"),
        (LimitError("result_too_large", "too large"), 507, "54000"),
        (LimitError("rate_limited", "too often", retry_after_ms=2_000), 429, "53400"),
        (EngineError("engine_unavailable", "away", retry_after_ms=1_000), 503, "08006"),
    ],
)
def test_an_error_has_its_status_and_sqlstate(error: StatementError, status: int, sqlstate: str) -> None:
    response = SqlFailures().response(error, "req_1")
    assert isinstance(response.body, bytes)
    body = json.loads(response.body)
    assert (response.status, body["code"], body["error"]["code"]) == (status, sqlstate, error.code)
    assert (b"retry-after" in dict(response.headers)) == (status in (429, 503))


def test_every_sqlstate_is_for_a_code_that_there_is() -> None:
    assert set(SQLSTATES) <= set(CODES)
    assert all(len(each) == 5 for each in SQLSTATES.values())
