"""The tiers and their limits, and limits that all tiers share: the single table that the code and `/capabilities` use.

The numbers are those of the HTTP contract. Each limit is enforced where it applies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_MIB = 1024 * 1024

# How many databases one transaction may span. Each uses one of a cell's 64 prepared transactions.
TRANSACTION_DATABASES = 8

# The wire protocol counts a statement's parameters in 16 bits.
_PARAMETERS = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a tier. None means no limit."""

    requests_per_minute: int | None
    statement_bytes: int
    request_bytes: int
    transaction_statements: int
    # Statements of a transaction that only check that an earlier result is still the same. They come on top.
    verified_reads: int
    parameters: int
    result_rows: int
    result_bytes: int
    statement_timeout_ms: int
    transaction_timeout_ms: int
    stream_life_ms: int
    concurrent_statements: int
    databases: int | None
    # With those that were deleted. For each, the cell copies up to 2 GiB.
    branches_per_day: int


_FREE = Limits(
    requests_per_minute=200,
    statement_bytes=1 * _MIB,
    request_bytes=4 * _MIB,
    transaction_statements=100,
    verified_reads=500,
    parameters=_PARAMETERS,
    result_rows=10_000,
    result_bytes=10 * _MIB,
    statement_timeout_ms=10_000,
    transaction_timeout_ms=10_000,
    stream_life_ms=60_000,
    concurrent_statements=8,
    databases=3,
    branches_per_day=20,
)

_STANDARD = Limits(
    requests_per_minute=6_000,
    statement_bytes=1 * _MIB,
    request_bytes=16 * _MIB,
    transaction_statements=1_000,
    verified_reads=2_000,
    parameters=_PARAMETERS,
    result_rows=100_000,
    result_bytes=64 * _MIB,
    statement_timeout_ms=30_000,
    transaction_timeout_ms=30_000,
    stream_life_ms=600_000,
    concurrent_statements=64,
    databases=100,
    branches_per_day=200,
)

_DEDICATED = Limits(
    requests_per_minute=None,
    statement_bytes=1 * _MIB,
    request_bytes=64 * _MIB,
    transaction_statements=10_000,
    verified_reads=10_000,
    parameters=_PARAMETERS,
    result_rows=100_000,
    result_bytes=64 * _MIB,
    statement_timeout_ms=300_000,
    transaction_timeout_ms=60_000,
    stream_life_ms=3_600_000,
    concurrent_statements=512,
    databases=None,
    branches_per_day=1_000,
)

TIERS: Mapping[str, Limits] = MappingProxyType({"free": _FREE, "standard": _STANDARD, "dedicated": _DEDICATED})
