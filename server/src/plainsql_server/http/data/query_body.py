"""Request and answer models of the query routes.

The request models validate themselves while they are decoded.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from plainsql_server.http.server.answers import Count, OmittedNotices, QueryTimings, RequestId, ShownNotices, Success

MaxRows = Annotated[int, Meta(ge=0)]
TimeoutMs = Annotated[int, Meta(ge=1)]
Rows = Annotated[
    Literal["object", "array"], Meta(description="Return each row as an object keyed by column name, or as an array.")
]
Numbers = Annotated[
    Literal["number", "string"], Meta(description="Return `int8` and `numeric` values as JSON numbers or as strings.")
]
ReadOnly = Annotated[bool, Meta(description="Run in a read-only transaction, even if the key may write.")]
Sql = Annotated[str, Meta(description="One SQL statement.")]
Params = Annotated[list[msgspec.Raw], Meta(description="Values for `$1`, `$2`, …")]
DatabaseWanted = Annotated[str | None, Meta(description="Name or id of the database. Overrides `X-Database`.")]
RowsWanted = Annotated[MaxRows | None, Meta(description="Maximum number of rows to return, up to your tier's limit.")]
Timeout = Annotated[TimeoutMs | None, Meta(description="Cancel after this many milliseconds, up to your tier's limit.")]


class QueryOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of both query routes."""

    row_format: Rows = "object"
    big_numbers: Numbers = "number"
    max_rows: RowsWanted = None
    timeout_ms: Timeout = None


class QueryBody(QueryOptions, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of POST /v1/query."""

    # Parameters stay raw JSON, so numbers keep all their digits.
    sql: Sql
    params: Params = []
    database: DatabaseWanted = None
    read_only: ReadOnly = False


class ResultAnswer(msgspec.Struct, kw_only=True):
    """The result of one statement."""

    columns: Annotated[list[str], Meta(description="Column names, in order, even if there are no rows.")]
    types: Annotated[list[str], Meta(description="PostgreSQL type names, in the order of `columns`.")]
    rows: Annotated[list[dict[str, Any] | list[Any]], Meta(description="The rows, as objects or arrays.")]
    row_count: Annotated[Count, Meta(description="Number of rows in `rows`.")]
    truncated: Annotated[
        bool, Meta(description="Whether rows were left out because of `max_rows` or your tier's limit.")
    ]
    affected_rows: Annotated[
        Count,
        Meta(description="Number of rows changed by INSERT, UPDATE, DELETE or MERGE, or stored by CREATE TABLE AS."),
    ]
    command: Annotated[str, Meta(description="The SQL command, such as SELECT.")]
    notices: ShownNotices = msgspec.UNSET
    notices_omitted: OmittedNotices = msgspec.UNSET


class QueryAnswer(ResultAnswer, kw_only=True):
    """The response to a query."""

    # `query.py` assembles the answer as bytes. This model describes it, and tests compare the two.
    success: Success = True
    timings: QueryTimings
    request_id: RequestId


QUERY_BODY = msgspec.json.Decoder(QueryBody)
