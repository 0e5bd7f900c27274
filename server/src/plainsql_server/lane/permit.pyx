# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The permit of a request whose organization has a rate limit.

    permit = take_permit(permits, principal, limit)    # None if there is none at hand

Nearly every request of a busy organization finds a permit in the lease that this process holds. That is taken here,
because a call of `Permits.take_now` would take more time than the rest of the limiter. `take_now` does everything else.
"""

from libc.math cimport ceil

from plainsql_server.lane.clocks cimport monotonic_ns

from plainsql_server.http.app.rate_limit import HEADERS, rate_headers
from plainsql_server.limits.account import Permit

# By tier: the header lines, with two numbers to be filled in.
cdef dict LINES = {
    tier: b"".join([name, b": ", policy, b"\r\nratelimit: ", left, b"\r\n"])
    for tier, ((name, policy), left) in HEADERS.items()
}


cdef class LanePermit:
    """A granted permit: how many are left, and when more become available."""

    cdef bytes header_lines(self):
        """The headers that the response has because of it, as they are sent."""
        return <bytes>LINES[self.tier] % (self.left, <long>ceil(self.wait_s))

    cdef tuple headers(self):
        """The same for the ordinary path."""
        return rate_headers(self.tier, Permit(True, self.left, self.wait_s))

    @property
    def lines(self):
        """`header_lines`, for tests."""
        return self.header_lines()


def permit_of(permits, principal, limit):
    """`take_permit`, for tests."""
    return take_permit(permits, principal, limit)


cdef LanePermit take_permit(permits, principal, limit):
    cdef LanePermit permit = LanePermit()
    cdef double now_s = monotonic_ns() * 1e-9
    permit.tier = principal.tier
    account = permits.accounts.get(principal.organization_id)
    if account is not None and take_held(account, now_s):
        permit.left, permit.wait_s = account.left + account.held, max(0.0, account.more_at_s - now_s)
        return permit
    granted = permits.take_now(principal.organization_id, limit)
    if granted is None:
        return None
    permit.left, permit.wait_s = granted.left, granted.wait_s
    return permit


cdef bint take_held(account, double now_s) except -1:
    """Takes a permit of the lease, unless that has ended or the next one must be requested now."""
    cdef long held = account.held - 1
    if held < 0 or now_s >= account.expires_s:
        return False
    if held <= account.refill_at and account.next_lease is None and not account.is_asking:
        return False
    account.held = held
    account.used += 1
    return True
