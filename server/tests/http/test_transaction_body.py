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


def _body(nows: int) -> bytes:
    return msgspec.json.encode({"statements": ["select 1"], "nows": [NOW] * nows})
