"""What callers send to the query routes and what they get, as models.

Owns the two request shapes, which check themselves while they are decoded, and the description of the answer. A file
of its own, because msgspec's models cannot be compiled (see `kernel.py`).
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from plainsql_server.http.server.answers import Count, QueryTimings, RequestId, Success

MaxRows = Annotated[int, Meta(ge=0)]
TimeoutMs = Annotated[int, Meta(ge=1)]
Rows = Annotated[Literal["object", "array"], Meta(description="Each row as an object by column name, or as an array.")]
Numbers = Annotated[Literal["number", "string"], Meta(description="How `int8` and `numeric` are written.")]
ReadOnly = Annotated[bool, Meta(description="Run in a read-only transaction, whatever the key may do.")]
Sql = Annotated[str, Meta(description="One statement.")]
Params = Annotated[list[msgspec.Raw], Meta(description="Values for `$1`, `$2`, …")]
DatabaseWanted = Annotated[str | None, Meta(description="Name of the database; wins over `X-Database`.")]
RowsWanted = Annotated[MaxRows | None, Meta(description="Rows to return at most; the tier's limit stays.")]
Timeout = Annotated[TimeoutMs | None, Meta(description="When to cancel; the tier's limit stays the longest.")]


class QueryOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both routes take beside the statement."""

    row_format: Rows = "object"
    big_numbers: Numbers = "number"
    max_rows: RowsWanted = None
    timeout_ms: Timeout = None


class QueryBody(QueryOptions, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of POST /v1/query."""

    # Parameters stay raw, so that numbers keep their digits.
    sql: Sql
    params: Params = []
    database: DatabaseWanted = None
    read_only: ReadOnly = False


class ResultAnswer(msgspec.Struct, kw_only=True):
    """What one statement gave back."""

    columns: Annotated[list[str], Meta(description="Names, in order; also when there are no rows.")]
    types: Annotated[list[str], Meta(description="PostgreSQL's type names, parallel to `columns`.")]
    rows: Annotated[list[dict[str, Any] | list[Any]], Meta(description="Objects, or arrays.")]
    row_count: Annotated[Count, Meta(description="How many rows are in `rows`.")]
    truncated: Annotated[bool, Meta(description="Whether there were more rows than `max_rows` or the tier allows.")]
    affected_rows: Annotated[Count, Meta(description="Rows changed by INSERT, UPDATE, DELETE or MERGE.")]
    command: Annotated[str, Meta(description="What PostgreSQL calls it.")]


class QueryAnswer(ResultAnswer, kw_only=True):
    """The answer to a query."""

    # It is put together as bytes, in `query.py`; this describes it, and tests compare the two.
    success: Success = True
    timings: QueryTimings
    request_id: RequestId


QUERY_BODY = msgspec.json.Decoder(QueryBody)
