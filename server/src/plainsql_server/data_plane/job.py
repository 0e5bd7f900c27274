"""The statement job: one statement from the request that brings it to its result.

    job = StatementJob("select $1::int", [b"1"])
    admit(job, principal)

A handler makes it, `admit` completes it with the tier's limits, the classification and the deadline, and
`engine/execution/` runs it. `query.py` and `stream.py` note on it what it used.
"""

import time
from collections.abc import Sequence

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import Outcome
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.admission import check_statement, lower
from plainsql_server.data_plane.classification import Classification, classify
from plainsql_server.data_plane.databases import Place, is_still_without_code
from plainsql_server.data_plane.head_start import HeadStart
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.execution.execution import Statement
from plainsql_server.limits.tiers import TIERS, Limits

# Looked up once: in Python 3.11, each lookup of an enum member is a function call.
_NOT_EXECUTED = Outcome.NOT_EXECUTED


class StatementJob(Statement):
    """A statement with the caller's wishes, its limits, and what it has used. Its time starts when it is made."""

    __slots__ = (
        "began_s",
        "classification",
        "database",
        "deadline",
        "head_start",
        "is_streamed",
        "limits",
        "max_rows",
        "outcome",
        "row_count",
        "size_bytes",
        "tier",
        "timeout_ms",
        "used_us",
        "wanted_rows",
        "wanted_timeout_ms",
        "without_code",
    )  # fmt: skip

    # Set by `admit`.
    classification: Classification
    deadline: Deadline
    limits: Limits
    max_rows: int
    tier: str
    timeout_ms: int

    def __init__(
        self,
        sql: str,
        params: Sequence[bytes] = (),
        database: str | None = None,
        *,
        timeout_ms: int | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__(sql, params, read_only=read_only)
        self.began_s = time.monotonic()
        # None means that the caller left the choice to the service.
        self.database = database
        self.wanted_rows: int | None = None
        self.wanted_timeout_ms = timeout_ms
        # Whether its rows are passed on while PostgreSQL produces them.
        self.is_streamed = False
        # Whether the database had no code when it was looked up.
        self.without_code = False
        # Set if the fast lane has sent the statement already.
        self.head_start: HeadStart | None = None
        # What is known of its effect so far, for a request that is cut off.
        self.outcome = _NOT_EXECUTED
        # How long it used a connection, over all attempts; None until it gets the first one. Its rows and their size.
        self.used_us: int | None = None
        self.row_count = 0
        self.size_bytes = 0

    @property
    def kind(self) -> str:
        """What error messages call it."""
        return "stream" if self.is_streamed else "statement"

    def go_on(self, head_start: HeadStart | None, began_s: float | None) -> None:
        """Makes it a job that the fast lane has begun, if it has: with a head start, or only at a time."""
        self.head_start = head_start
        if head_start is not None:
            self.began_s = head_start.began_s
        elif began_s is not None:
            self.began_s = began_s

    def limit_time(self, limit_ms: int) -> None:
        """Sets the deadline: what the caller asked for, up to the limit, from when the job was made."""
        self.timeout_ms = lower(self.wanted_timeout_ms, limit_ms)
        self.deadline = Deadline(self.began_s + self.timeout_ms / 1000)

    def hold(self, held_us: int) -> None:
        """Adds the time for which it held a connection."""
        self.used_us = held_us if self.used_us is None else self.used_us + held_us

    def session_state(self) -> SessionState:
        """The session state that the statement may leave behind, if it ends now."""
        return self.classification.state_left(is_still_without_code(self.without_code, self.began_s))


def admit(job: StatementJob, principal: Principal) -> None:
    """Completes a job for an ordinary query. Raises RequestError if the statement isn't allowed or is too large."""
    limits = TIERS[principal.tier]
    check_statement(job.sql, job.params, limits, principal.tier)
    job.classification = classify(job.sql)
    job.limits = limits
    job.tier = principal.tier
    job.max_rows = lower(job.wanted_rows, limits.result_rows)
    job.limit_time(limits.statement_timeout_ms)


def note_usage(tally: Tally, principal: Principal, place: Place, job: StatementJob) -> None:
    """Counts what a job used. One that never got a connection used nothing, however long it waited."""
    if job.used_us is not None:
        tally.note_usage(principal.organization_id, place.database_id, job.row_count, job.used_us, job.size_bytes)
