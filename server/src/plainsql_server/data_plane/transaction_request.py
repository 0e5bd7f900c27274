"""A transaction as the caller sent it.

    TransactionRequest([TransactionStatement("select 1")], dry_run=True)

A parameter of a statement can be a reference: `{"$ref": "0.rows.0.id"}` is a value from an earlier statement's result.
Errors in references that can be detected without running anything are raised before any statement runs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.encoding.parameters import TextParameter
from plainsql_server.engine.encoding.shapes import DEFAULT_ENCODING, Encoding
from plainsql_server.engine.execution.plan import Count, Expectation, ExpectedDigest, ResultReference

_PATH = re.compile(r"(\d{1,5})\.(?:(row_count|affected_rows)|rows\.(\d{1,6})\.(.+))", re.ASCII | re.DOTALL)


@dataclass(slots=True)
class TransactionStatement:
    """One statement as the caller sent it."""

    sql: str
    params: Sequence[bytes] = ()
    expect: Expectation | ExpectedDigest | None = None
    database: str | None = None
    digest: bool = False
    rows: bool = True
    freeze: bool = False
    # The encoding of its result, if not the transaction's.
    encoding: Encoding | None = None

    @property
    def is_hashed(self) -> bool:
        return self.digest or isinstance(self.expect, ExpectedDigest)


@dataclass(slots=True)
class TransactionRequest:
    """A transaction as the caller sent it. None means that the caller left the choice to the service."""

    statements: Sequence[TransactionStatement]
    database: str | None = None
    encoding: Encoding = DEFAULT_ENCODING
    read_only: bool = False
    max_rows: int | None = None
    max_retries: int | None = None
    timeout_ms: int | None = None
    # Whether to roll it back at its end, and whether to check deferred constraints before that.
    dry_run: bool = False
    check_deferred: bool = False
    # The times of earlier dry runs of the same work, which digests take for the time of this one.
    nows: Sequence[str] = ()


class _Sent(msgspec.Struct, forbid_unknown_fields=True):
    ref: str = msgspec.field(name="$ref")


_decoder = msgspec.json.Decoder(_Sent)


def read_parameter(raw: bytes, statement_index: int) -> bytes | ResultReference:
    """The parameter as it was sent, or the reference it contains. Raises RequestError if the reference is invalid."""
    if not raw.startswith(b"{") or b"$ref" not in raw or isinstance(raw, TextParameter):
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
