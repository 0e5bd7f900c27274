"""What several answers have in common: the fields that all of them have, and the one shape of failures.

Owns these shapes. An answer is encoded from its model, and `/openapi.json` describes the same model, so that the two
cannot differ. Fields without a value are null, in failures left out.
"""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.core.errors import Outcome

Success = Annotated[bool, Meta(description="Always true.", extra_json_schema={"const": True})]
RequestId = Annotated[str, Meta(description="Names this request; the operator finds it in the log.")]
Time = Annotated[datetime, Meta(tz=True)]
Cursor = Annotated[str | None, Meta(description="Send it back as `cursor` to get the next page; null on the last.")]
Microseconds = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Error(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What went wrong. Fields without a value are left out."""

    code: Annotated[str, Meta(description="A stable name.", pattern="^[a-z]+(_[a-z]+)*$")]
    message: Annotated[str, Meta(description="For people; may change.")]
    sqlstate: Annotated[str | None, Meta(description="PostgreSQL's code, where it spoke.")] = None
    detail: Annotated[str | None, Meta(description="More from PostgreSQL.")] = None
    hint: Annotated[str | None, Meta(description="What to do about it.")] = None
    position: Annotated[int | None, Meta(description="The character of your SQL, from 1.")] = None
    statement_index: Annotated[int | None, Meta(description="Which statement of a transaction, from 0.")] = None
    schema: Annotated[str | None, Meta(description="The schema that PostgreSQL names.")] = None
    table: Annotated[str | None, Meta(description="The table that PostgreSQL names.")] = None
    column: Annotated[str | None, Meta(description="The column that PostgreSQL names.")] = None
    constraint: Annotated[str | None, Meta(description="The constraint that PostgreSQL names.")] = None
    retryable: Annotated[bool, Meta(description="Whether the same request may succeed later.")]
    retry_after_ms: Annotated[int | None, Meta(description="How long to wait before that.")] = None
    outcome: Annotated[Outcome, Meta(description="Whether anything happened.")]


class Failure(msgspec.Struct, kw_only=True):
    """A request that failed."""

    success: Annotated[bool, Meta(description="Always false.", extra_json_schema={"const": False})] = False
    error: Error
    request_id: RequestId


class QueryTimings(msgspec.Struct, kw_only=True):
    """Where the time of a query went, in microseconds."""

    total_us: Annotated[Microseconds, Meta(description="In the service.")]
    exec_us: Annotated[Microseconds, Meta(description="Of it, with the engine.")]


class QueryFailure(msgspec.Struct, kw_only=True):
    """A query that failed: with the fields of a query's answer, so that clients read one shape."""

    success: Annotated[bool, Meta(description="Always false.", extra_json_schema={"const": False})] = False
    error: Error
    columns: Annotated[list[str], Meta(description="Empty.", max_length=0)] = []
    rows: Annotated[list[msgspec.Raw], Meta(description="Empty.", max_length=0)] = []
    affected_rows: Annotated[int, Meta(description="0.", extra_json_schema={"const": 0})] = 0
    timings: QueryTimings
    request_id: RequestId
