"""The error to report for a request that failed.

    except (ServiceError, ResultTooLarge) as error:
        raise to_error(error, lease.ended_for, job) from error

Queries, streams, transactions and the service's own statements share it.
"""

from dataclasses import dataclass
from typing import Protocol

from plainsql_server.core.errors import EngineError, LimitError, Outcome, ServiceError, StatementError
from plainsql_server.core.placeholders import hint_for
from plainsql_server.engine.connection.interrupt import InterruptReason
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.limits.tiers import Limits


class Limited(Protocol):
    """A request with limits."""

    limits: Limits
    tier: str
    timeout_ms: int

    @property
    def kind(self) -> str:
        """What error messages call it: statement, stream or transaction."""


def to_error(
    error: ServiceError | ResultTooLarge,
    reason: InterruptReason | None,
    job: Limited,
    *,
    too_large: Outcome = Outcome.UNKNOWN,
) -> ServiceError:
    """The error to report. If we ended the statement ourselves, it names our reason instead of PostgreSQL's error.

    `too_large` is the outcome of a request whose result was cut off in the middle.
    """
    if isinstance(error, ResultTooLarge):
        return result_too_large(job, too_large)
    if reason is InterruptReason.TOO_LARGE and was_rolled_back(error):
        return result_too_large(job, Outcome.ROLLED_BACK)
    if reason is InterruptReason.DEADLINE and isinstance(error, (StatementError, EngineError)):
        # A stream runs in a read-only transaction, so it had no effect, whatever became of its connection.
        return timed_out(job, Outcome.ROLLED_BACK if job.kind == "stream" else error.outcome)
    return error


def timed_out(job: Limited, outcome: Outcome = Outcome.ROLLED_BACK) -> LimitError:
    """The error for a request that exceeded its deadline."""
    doubt = "; it may or may not have taken effect" if outcome is Outcome.UNKNOWN else ""
    message = f"The {job.kind} did not finish within {job.timeout_ms} ms and was cancelled (tier {job.tier!r}){doubt}."
    if job.kind == "transaction":
        return LimitError("transaction_deadline_exceeded", message, outcome=outcome)
    return LimitError("statement_timeout", message, outcome=outcome)


def result_too_large(job: Limited, outcome: Outcome) -> LimitError:
    """The error for a result that is too large to be buffered, or for a row of a stream that is."""
    limit = f"{job.limits.result_bytes} bytes, the {job.tier} tier's limit"
    if job.kind == "stream":
        message = f"A row, or a batch of rows of different sizes, exceeds {limit}."
        return LimitError("result_too_large", message, outcome=outcome)
    return LimitError(
        "result_too_large",
        f"The result exceeds {limit} for a result that isn't streamed.",
        hint="Select fewer rows or columns, or stream the result: start the statement with /*+ STREAM */.",
        outcome=outcome,
    )


# PostgreSQL's code for a write in a read-only transaction.
_REFUSED_WRITE = "25006"


def complete_error(error: ServiceError, exec_us: int | None, *, may_write: bool, sql: str | None) -> None:
    """Adds what only the request knows: how long it used a connection, why it must not write, and a hint on its SQL."""
    error.exec_us = exec_us or 0
    if sql is not None and error.hint is None:
        error.hint = hint_for(sql, error.diagnosis.sqlstate, error.diagnosis.position)
    if not may_write and error.hint is None and error.diagnosis.sqlstate == _REFUSED_WRITE:
        error.hint = "Your key or session has the scope read. Use one with the scope write."


def was_rolled_back(error: Exception) -> bool:
    """Whether PostgreSQL rolled the statement back before it reported this error."""
    return isinstance(error, (StatementError, EngineError)) and error.outcome is Outcome.ROLLED_BACK


@dataclass(slots=True)
class OwnLimits:
    """The limits of the service's own statements, for `to_error`."""

    limits: Limits
    tier: str
    timeout_ms: int
    kind: str = "statement"
