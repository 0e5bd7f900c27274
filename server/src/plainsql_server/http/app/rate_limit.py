"""Applies the rate limit to a request: takes a permit, sets the rate limit headers, and refuses if none is left.

The headers follow the IETF draft on rate limit headers. The counting is in `limits/permits.py`.
"""

from math import ceil

from plainsql_server.core.errors import LimitError
from plainsql_server.core.principal import Principal
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Header
from plainsql_server.limits.account import Permit
from plainsql_server.limits.permits import Permits
from plainsql_server.limits.tiers import TIERS

_WINDOW_S = 60


def _headers(tier: str, limit: int) -> tuple[tuple[bytes, bytes], bytes]:
    """The RateLimit-Policy header, and the template for the value of the RateLimit header."""
    name = f'"org-{tier}"'
    return (b"ratelimit-policy", f"{name};q={limit};w={_WINDOW_S}".encode()), f"{name};r=%d;t=%d".encode()


# Prepared once, because every response has them.
HEADERS = {
    tier: _headers(tier, limits.requests_per_minute)
    for tier, limits in TIERS.items()
    if limits.requests_per_minute is not None
}


async def take_permit(request: Request, principal: Principal, permits: Permits) -> None:
    """Takes a permit and sets the headers of the response. Raises LimitError if the limit is exceeded.

    A tier without a rate limit has no headers. The remaining count is what this process knows: it is exact at low
    rates; at high rates it misses the permits that other processes have leased since.
    """
    limit = TIERS[principal.tier].requests_per_minute
    if limit is None:
        return
    permit = await permits.take(principal.organization_id, limit)
    request.rate_headers = rate_headers(principal.tier, permit)
    if not permit.granted:
        raise _rate_limited(limit, principal.tier, permit.wait_s)


def rate_headers(tier: str, permit: Permit) -> tuple[Header, ...]:
    """The headers that every response has in a tier with a rate limit."""
    policy, left = HEADERS[tier]
    return policy, (b"ratelimit", left % (permit.left, ceil(permit.wait_s)))


def _rate_limited(limit: int, tier: str, wait_s: float) -> LimitError:
    return LimitError(
        "rate_limited",
        f"Rate limit exceeded: the {tier} tier allows {limit} requests per minute. Retry in {max(1, ceil(wait_s))} s.",
        retryable=True,
        retry_after_ms=max(1, ceil(wait_s * 1000)),
    )
