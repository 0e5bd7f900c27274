"""The tier's limits on statements and results: the checks and the errors, for single statements and transactions."""

from collections.abc import Sequence

from plainsql_server.core.errors import EngineError, LimitError, Outcome, RequestError, StatementError
from plainsql_server.limits.tiers import Limits


def check_statement(sql: str, params: Sequence[object], limits: Limits, tier: str) -> None:
    """Raises RequestError if a statement is too large or has too many parameters."""
    length = len(sql)
    # A character has at most four bytes, so most statements pass without counting bytes.
    if length * 4 > limits.statement_bytes and (
        length > limits.statement_bytes or len(sql.encode()) > limits.statement_bytes
    ):
        raise RequestError(
            "statement_too_large",
            f"The statement is too large: the {tier} tier allows {limits.statement_bytes} bytes.",
        )
    if len(params) > limits.parameters:
        raise RequestError(
            "too_many_parameters",
            f"The statement has {len(params)} parameters; the {tier} tier allows {limits.parameters}.",
        )


def statement_timed_out(timeout_ms: int, tier: str, outcome: Outcome = Outcome.ROLLED_BACK) -> LimitError:
    """The error for a statement that exceeded its deadline."""
    message = f"The statement did not finish within {timeout_ms} ms and was cancelled (tier {tier!r}){_doubt(outcome)}."
    return LimitError("statement_timeout", message, outcome=outcome)


def transaction_timed_out(timeout_ms: int, tier: str, outcome: Outcome = Outcome.ROLLED_BACK) -> LimitError:
    """The error for a transaction that exceeded its deadline."""
    message = (
        f"The transaction did not finish within {timeout_ms} ms and was cancelled (tier {tier!r}){_doubt(outcome)}."
    )
    return LimitError("transaction_deadline_exceeded", message, outcome=outcome)


def _doubt(outcome: Outcome) -> str:
    return "; it may or may not have taken effect" if outcome is Outcome.UNKNOWN else ""


def result_too_large(limits: Limits, tier: str, outcome: Outcome) -> LimitError:
    """The error for a result that is too large to be buffered."""
    return LimitError(
        "result_too_large",
        f"The result exceeds {limits.result_bytes} bytes, the {tier} tier's limit for a result that isn't streamed.",
        hint="Select fewer rows or columns, or stream the result: start the statement with /*+ STREAM */.",
        outcome=outcome,
    )


def was_ended(error: Exception) -> bool:
    """Whether the error is one that occurs when we end a statement: it was rolled back, or its connection was lost."""
    return isinstance(error, (StatementError, EngineError)) and error.outcome is not Outcome.NOT_EXECUTED


def was_rolled_back(error: Exception) -> bool:
    """Whether PostgreSQL rolled the statement back before it reported this error."""
    return isinstance(error, (StatementError, EngineError)) and error.outcome is Outcome.ROLLED_BACK
