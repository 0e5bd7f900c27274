"""The tier's limits on requests: their statements, and their time."""

from collections.abc import Sequence

from plainsql_server.core.errors import RequestError
from plainsql_server.limits.tiers import Limits


def lower(wanted: int | None, limit: int) -> int:
    """What the caller asked for, up to the limit. None means that the caller left it to the service."""
    return limit if wanted is None or wanted > limit else wanted


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
