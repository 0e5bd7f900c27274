"""The rate limit of a request: a permit, the headers that tell of it, and the refusal where there is none.

Owns the headers, which are those of the IETF's draft on rate limits. Refuses to count: `limits/permits.py` does.
"""

from collections.abc import Awaitable
from math import ceil

from plainsql_server.core.errors import LimitError
from plainsql_server.core.principal import Principal
from plainsql_server.http.server.requests import Request
from plainsql_server.limits.account import Permit
from plainsql_server.limits.permits import Permits
from plainsql_server.limits.tiers import TIERS

_WINDOW_S = 60


def _headers(tier: str, limit: int) -> tuple[tuple[bytes, bytes], bytes]:
    """The header with the policy, and the value of the one that says what is left."""
    name = f'"org-{tier}"'
    return (b"ratelimit-policy", f"{name};q={limit};w={_WINDOW_S}".encode()), f"{name};r=%d;t=%d".encode()


# Written once, since they go out with every request.
_HEADERS = {
    tier: _headers(tier, limits.requests_per_minute)
    for tier, limits in TIERS.items()
    if limits.requests_per_minute is not None
}


def take_permit(request: Request, principal: Principal, permits: Permits) -> Awaitable[None] | None:
    """Takes a permit, and leaves the headers for the response. None if that is done: else it must be waited for.

    Waiting raises LimitError where the limit is used up. A tier without a limit has no headers. What is left is what
    this process knows: exact where few requests are made, behind by what others leased just now where many are.
    """
    limit = TIERS[principal.tier].requests_per_minute
    if limit is None:
        return None
    permit = permits.take_held(principal.organization_id)
    if permit is None:
        return _wait_for_permit(request, principal, permits, limit)
    _tell(request, principal.tier, permit)
    return None


async def _wait_for_permit(request: Request, principal: Principal, permits: Permits, limit: int) -> None:
    permit = await permits.take(principal.organization_id, limit)
    _tell(request, principal.tier, permit)
    if not permit.granted:
        raise _rate_limited(limit, principal.tier, permit.wait_s)


def _tell(request: Request, tier: str, permit: Permit) -> None:
    policy, left = _HEADERS[tier]
    request.rate_headers = (policy, (b"ratelimit", left % (permit.left, ceil(permit.wait_s))))


def _rate_limited(limit: int, tier: str, wait_s: float) -> LimitError:
    return LimitError(
        "rate_limited",
        f"An organization may make {limit} requests a minute in the tier {tier!r}, and yours has made them.",
        retryable=True,
        retry_after_ms=max(1, ceil(wait_s * 1000)),
    )
