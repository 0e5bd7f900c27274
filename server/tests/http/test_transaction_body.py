"""The body of a transaction: what its schema refuses."""

import msgspec
import pytest

from plainsql_server.http.data.transaction import MAX_NOWS, TRANSACTION_BODY

pytestmark = pytest.mark.unit

NOW = "2026-11-17T09:46:06.123456Z"


def test_a_request_names_a_limited_number_of_dry_runs() -> None:
    assert len(TRANSACTION_BODY.decode(_body(MAX_NOWS)).nows) == MAX_NOWS
    with pytest.raises(msgspec.ValidationError):
        TRANSACTION_BODY.decode(_body(MAX_NOWS + 1))


@pytest.mark.parametrize("now", ["", NOW[:-1], f"{NOW}\n", f"\n{NOW}", f"{NOW}\n{NOW}", f"{NOW}{NOW}", f"x{NOW}"])
@pytest.mark.parametrize("others", [[], [NOW]])
def test_what_is_no_time_of_a_dry_run_is_refused(now: str, others: list[str]) -> None:
    with pytest.raises(msgspec.ValidationError, match="nows must be times"):
        TRANSACTION_BODY.decode(msgspec.json.encode({"statements": ["select 1"], "nows": [*others, now, *others]}))


@pytest.mark.parametrize("fields", [{}, {"row_count": 1, "affected_rows": 1}, {"digest": "a" * 32, "row_count": 0}])
def test_one_thing_is_expected_of_a_statement(fields: dict[str, object]) -> None:
    statement = {"sql": "select 1", "expect": fields}
    with pytest.raises(msgspec.ValidationError, match="exactly one"):
        TRANSACTION_BODY.decode(msgspec.json.encode({"statements": [statement]}))


def _body(nows: int) -> bytes:
    return msgspec.json.encode({"statements": ["select 1"], "nows": [NOW] * nows})
