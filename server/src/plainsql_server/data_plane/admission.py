"""What a tier allows a statement and its result to be.

Owns the errors that name those limits, for single statements and transactions alike. Refuses to look into SQL.
"""

from collections.abc import Sequence

from plainsql_server.core.errors import EngineError, LimitError, Outcome, RequestError, StatementError
from plainsql_server.limits.tiers import Limits


def check_statement(sql: str, params: Sequence[object], limits: Limits, tier: str) -> None:
    """Raises RequestError for a statement that is too long or has too many parameters."""
    length = len(sql)
    # A character has at most four bytes, so that counting them is rarely needed.
    if length * 4 > limits.statement_bytes and (
        length > limits.statement_bytes or len(sql.encode()) > limits.statement_bytes
    ):
        raise RequestError(
            "statement_too_large", f"A statement may have {limits.statement_bytes} bytes in the tier {tier!r}."
        )
    if len(params) > limits.parameters:
        raise RequestError(
            "too_many_parameters",
            f"A statement may have {limits.parameters} parameters in the tier {tier!r}; this one has {len(params)}.",
        )


def statement_timed_out(timeout_ms: int, tier: str, outcome: Outcome = Outcome.ROLLED_BACK) -> LimitError:
    """The error for a statement that the deadline ended."""
    message = f"The statement did not finish within {timeout_ms} ms and was cancelled (tier {tier!r}){_doubt(outcome)}."
    return LimitError("statement_timeout", message, outcome=outcome)


def transaction_timed_out(timeout_ms: int, tier: str, outcome: Outcome = Outcome.ROLLED_BACK) -> LimitError:
    """The error for a transaction that the deadline ended."""
    message = (
        f"The transaction did not finish within {timeout_ms} ms and was cancelled (tier {tier!r}){_doubt(outcome)}."
    )
    return LimitError("transaction_timeout", message, outcome=outcome)


def _doubt(outcome: Outcome) -> str:
    return "; it may or may not have taken effect" if outcome is Outcome.UNKNOWN else ""


def result_too_large(limits: Limits, tier: str, outcome: Outcome) -> LimitError:
    """The error for a result that does not fit into a buffered answer."""
    return LimitError(
        "result_too_large",
        f"The result is larger than {limits.result_bytes} bytes, the limit of a buffered result in the tier {tier!r}.",
        hint="Ask for fewer rows or columns, or for a stream: begin the statement with /*+ STREAM */.",
        outcome=outcome,
    )


def was_ended(error: Exception) -> bool:
    """Whether this is how it looks when we end a statement: undone by the engine, or its connection lost to us."""
    return isinstance(error, (StatementError, EngineError)) and error.outcome is not Outcome.NOT_EXECUTED


def was_rolled_back(error: Exception) -> bool:
    """Whether the engine undid a statement before it told this error."""
    return isinstance(error, (StatementError, EngineError)) and error.outcome is Outcome.ROLLED_BACK
