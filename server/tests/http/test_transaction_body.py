"""The body of a transaction: what its schema refuses."""

import asyncio

import msgspec
import pytest

from plainsql_server.core.errors import RequestError
from plainsql_server.http.data.transaction import MAX_NOWS, TRANSACTION_BODY, statements_of

pytestmark = pytest.mark.unit

NOW = "2026-11-17T09:46:06.123456Z"


def test_a_request_names_a_limited_number_of_dry_runs() -> None:
    assert len(TRANSACTION_BODY.decode(_body(MAX_NOWS)).nows) == MAX_NOWS
    with pytest.raises(msgspec.ValidationError):
        TRANSACTION_BODY.decode(_body(MAX_NOWS + 1))


@pytest.mark.parametrize("now", ["", NOW[:-1], f"{NOW}\n", f"\n{NOW}", f"{NOW}\n{NOW}", f"{NOW}{NOW}", f"x{NOW}"])
@pytest.mark.parametrize("others", [[], [NOW] * 500])
def test_what_is_no_time_of_a_dry_run_is_refused(now: str, others: list[str]) -> None:
    error = _refused({"statements": ["select 1"], "nows": [*others, now, *others]})
    assert "nows must be times" in error.message


@pytest.mark.parametrize("fields", [{}, {"row_count": 1, "affected_rows": 1}, {"digest": "a" * 32, "row_count": 0}])
def test_one_thing_is_expected_of_a_statement(fields: dict[str, object]) -> None:
    statements = ["select 1"] * 300 + [{"sql": "select 1", "expect": fields}]
    error = _refused({"statements": statements})
    assert "exactly one" in error.message
    assert error.statement_index == 300


@pytest.mark.parametrize("digest", ["", "a" * 31, "A" * 32, "a" * 32 + "\n"])
@pytest.mark.parametrize("field", ["digest", "multiset_digest"])
def test_what_is_no_digest_is_refused(field: str, digest: str) -> None:
    error = _refused({"statements": [{"sql": "select 1", "expect": {field: digest}}]})
    assert "32 hexadecimal digits" in error.message


def _refused(body: dict[str, object]) -> RequestError:
    with pytest.raises(RequestError) as refused:
        asyncio.run(statements_of(TRANSACTION_BODY.decode(msgspec.json.encode(body))))
    assert refused.value.code == "malformed_request"
    return refused.value


def _body(nows: int) -> bytes:
    return msgspec.json.encode({"statements": ["select 1"], "nows": [NOW] * nows})
