"""What callers send to the query routes, as models that check themselves while they are decoded.

Owns the two request shapes. A file of its own, because msgspec's models cannot be compiled (see `kernel.py`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MaxRows = Annotated[int, Meta(ge=0)]
TimeoutMs = Annotated[int, Meta(ge=1)]


class QueryOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both routes take beside the statement."""

    row_format: Literal["object", "array"] = "object"
    big_numbers: Literal["number", "string"] = "number"
    max_rows: MaxRows | None = None
    timeout_ms: TimeoutMs | None = None


class QueryBody(QueryOptions, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of POST /v1/query. Parameters stay raw, so that numbers keep their digits."""

    sql: str
    params: list[msgspec.Raw] = []
    database: str | None = None
    read_only: bool = False


QUERY_BODY = msgspec.json.Decoder(QueryBody)
