# cython: language_level=3
"""Who calls, and where that leads: a principal and a place, both cached by the ordinary path, and what they have used.

    caller = new_caller(principal, place, pool)

A caller is valid until a time or until the next change notification, whichever comes first: the same rule by which
the caches of the ordinary path answer, so a revocation and a move reach the lane as they reach the rest.
"""

from plainsql_server.limits.tiers import TIERS


cdef class Caller:
    """A principal and the place of its database, for as long as both are valid."""


def caller_of(principal, place, pool):
    """`new_caller`, for tests."""
    return new_caller(principal, place, pool)


cdef Caller new_caller(principal, place, pool):
    cdef Caller caller = Caller()
    caller.principal, caller.place, caller.limits = principal, place, TIERS[principal.tier]
    caller.without_code = place.without_code and place.certain
    caller.is_read_only = place.address.read_only
    caller.has_rate_limit = caller.limits.requests_per_minute is not None
    caller.log_names = b'","error_code":null,"organization_id":"%b","key_id":"%b","trace_id":' % (
        principal.organization_id.encode(), principal.key_id.encode()
    )
    caller.pool, caller.admission, caller.queue = pool, pool.cell.admission, pool.queue
    caller.leader, caller.catalog, caller.idle = pool.cell.leader, pool.catalog, pool.idle
    return caller
