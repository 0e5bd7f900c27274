"""Models that several answers share: common fields, and the shape of every failure.

Each answer is encoded from its model, and `/openapi.json` is generated from the same model, so the two always agree.
Fields without a value are null; in failures they are omitted.
"""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.core.errors import Outcome
from plainsql_server.core.result import Notices

Success = Annotated[bool, Meta(description="Always true.", extra_json_schema={"const": True})]
RequestId = Annotated[str, Meta(description="Identifies this request. Quote it when you contact the operator.")]
Time = Annotated[datetime, Meta(tz=True)]
Cursor = Annotated[str | None, Meta(description="Pass it as `cursor` to get the next page. Null on the last page.")]
Microseconds = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Notice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A notice or warning of PostgreSQL."""

    severity: Annotated[str, Meta(description="NOTICE, WARNING, INFO, LOG or DEBUG.")]
    code: Annotated[str, Meta(description="Its SQLSTATE.")]
    message: Annotated[str, Meta(description="What PostgreSQL reported.")]
    detail: Annotated[str | None, Meta(description="PostgreSQL's detail message.")] = None
    hint: Annotated[str | None, Meta(description="PostgreSQL's hint.")] = None


# Omitted, like everything that is UNSET, if there are none.
ShownNotices = Annotated[
    list[Notice] | msgspec.UnsetType,
    Meta(description="What PostgreSQL reported besides the result. Omitted if there is nothing."),
]
OmittedNotices = Annotated[
    Annotated[int, Meta(ge=1)] | msgspec.UnsetType,
    Meta(description="How many notices were left out because there were too many. Omitted if none was."),
]


class NoticeFields(msgspec.Struct, kw_only=True):
    """The notices of a result."""

    notices: ShownNotices = msgspec.UNSET
    notices_omitted: OmittedNotices = msgspec.UNSET


def notice_fields(notices: Notices | None) -> NoticeFields:
    """The fields for these notices."""
    if notices is None:
        return NoticeFields()
    shown = [Notice(**each._asdict()) for each in notices.shown]
    return NoticeFields(notices=shown, notices_omitted=notices.omitted or msgspec.UNSET)


def notices_json(notices: Notices | None) -> bytes:
    """The same as members of a JSON object, with a comma before them; empty if there are none."""
    return b"" if notices is None else b"," + msgspec.json.encode(notice_fields(notices))[1:-1]


class Error(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What went wrong. Fields without a value are omitted."""

    code: Annotated[str, Meta(description="Stable, machine-readable error code.", pattern="^[a-z]+(_[a-z]+)*$")]
    message: Annotated[str, Meta(description="Explanation for people. The wording may change.")]
    sqlstate: Annotated[str | None, Meta(description="The SQLSTATE, if the error comes from PostgreSQL.")] = None
    detail: Annotated[str | None, Meta(description="PostgreSQL's detail message.")] = None
    hint: Annotated[str | None, Meta(description="How to fix the problem.")] = None
    position: Annotated[int | None, Meta(description="Position of the error in your SQL, in characters from 1.")] = None
    statement_index: Annotated[
        int | None, Meta(description="Index of the failed statement in the transaction, from 0.")
    ] = None
    schema: Annotated[str | None, Meta(description="The schema that the error concerns.")] = None
    table: Annotated[str | None, Meta(description="The table that the error concerns.")] = None
    column: Annotated[str | None, Meta(description="The column that the error concerns.")] = None
    constraint: Annotated[str | None, Meta(description="The constraint that the error concerns.")] = None
    retryable: Annotated[bool, Meta(description="Whether the same request may succeed if you retry it.")]
    retry_after_ms: Annotated[int | None, Meta(description="How long to wait before you retry, in milliseconds.")] = (
        None
    )
    outcome: Annotated[Outcome, Meta(description="Whether the request took effect.")]


class Failure(msgspec.Struct, kw_only=True):
    """A request that failed."""

    success: Annotated[bool, Meta(description="Always false.", extra_json_schema={"const": False})] = False
    error: Error
    notices: ShownNotices = msgspec.UNSET
    notices_omitted: OmittedNotices = msgspec.UNSET
    request_id: RequestId


class QueryTimings(msgspec.Struct, kw_only=True):
    """How long the query took, in microseconds."""

    total_us: Annotated[Microseconds, Meta(description="Total time in the service.")]
    exec_us: Annotated[Microseconds, Meta(description="The part of it spent in PostgreSQL.")]


class QueryFailure(msgspec.Struct, kw_only=True):
    """A query that failed. It also has the fields of a successful answer, so clients can read both the same way."""

    success: Annotated[bool, Meta(description="Always false.", extra_json_schema={"const": False})] = False
    error: Error
    columns: Annotated[list[str], Meta(description="Always empty.", max_length=0)] = []
    rows: Annotated[list[msgspec.Raw], Meta(description="Always empty.", max_length=0)] = []
    affected_rows: Annotated[int, Meta(description="Always 0.", extra_json_schema={"const": 0})] = 0
    notices: ShownNotices = msgspec.UNSET
    notices_omitted: OmittedNotices = msgspec.UNSET
    timings: QueryTimings
    request_id: RequestId
