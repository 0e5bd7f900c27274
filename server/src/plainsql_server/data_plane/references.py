"""References: `{"$ref": "0.rows.0.id"}` is a parameter whose value comes from an earlier statement's result.

Errors that can be detected without running anything are raised before any statement runs.
"""

import re

import msgspec

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.execution.transaction import Count, ResultReference

_PATH = re.compile(r"(\d{1,5})\.(?:(row_count|affected_rows)|rows\.(\d{1,6})\.(.+))", re.ASCII | re.DOTALL)


class _Sent(msgspec.Struct, forbid_unknown_fields=True):
    ref: str = msgspec.field(name="$ref")


_decoder = msgspec.json.Decoder(_Sent)


def read_parameter(raw: bytes, statement_index: int) -> bytes | ResultReference:
    """The parameter as it was sent, or the reference it contains. Raises RequestError if the reference is invalid."""
    if not raw.startswith(b"{") or b"$ref" not in raw:
        return raw
    try:
        path = _decoder.decode(raw).ref
    except msgspec.ValidationError:
        # The caller's own JSON, which happens to contain `$ref`.
        return raw
    match = _PATH.fullmatch(path)
    if match is None:
        raise _wrong(
            statement_index,
            f"{path!r} isn't a valid reference.",
            "A reference looks like 0.rows.0.id or 0.affected_rows.",
        )
    if int(match[1]) >= statement_index:
        raise _wrong(statement_index, f"{path!r} must refer to an earlier statement.", None)
    if match[2] is not None:
        return ResultReference(int(match[1]), path, Count(match[2]))
    return ResultReference(int(match[1]), path, row=int(match[3]), column=match[4])


def _wrong(statement_index: int, message: str, hint: str | None) -> RequestError:
    return RequestError("invalid_reference", message, hint=hint, statement_index=statement_index)
