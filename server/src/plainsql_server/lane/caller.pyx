# cython: language_level=3
"""Who calls, and where that leads: a principal and a place, both cached by the ordinary path, and what they have used.

    caller = new_caller(principal, place, pool)

A caller is valid until a time or until the next change notification, whichever comes first: the same rule by which
the caches of the ordinary path answer, so a revocation and a move reach the lane as they reach the rest.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from plainsql_server.lane.known_head cimport SECRET_SIZE

from plainsql_server.limits.tiers import TIERS


cdef class Caller:
    """A principal and the place of its database, for as long as both are valid."""

    cdef bint has_sent(self, const char *secret) noexcept:
        """Whether its secret is the one that begins there.

        That takes the same time wherever they differ: behind a proxy, one client's secret is compared with another's.
        """
        cdef uint64_t[6] ours, theirs
        cdef const char *own
        if self.secret is None:
            return False
        own = PyBytes_AS_STRING(self.secret)
        memcpy(&ours, own, 40)
        memcpy(&theirs, secret, 40)
        # The last one overlaps, because the size is not a multiple of eight.
        memcpy(&ours[5], own + SECRET_SIZE - 8, 8)
        memcpy(&theirs[5], secret + SECRET_SIZE - 8, 8)
        return (
            (ours[0] ^ theirs[0]) | (ours[1] ^ theirs[1]) | (ours[2] ^ theirs[2])
            | (ours[3] ^ theirs[3]) | (ours[4] ^ theirs[4]) | (ours[5] ^ theirs[5])
        ) == 0

    cdef bint has_named(self, const char *database, Py_ssize_t size) noexcept:
        """Whether this is the name of its database, in the request; with a size of 0, whether the request had none."""
        if self.database is None or size == 0:
            return self.database is None and size == 0
        return PyBytes_GET_SIZE(self.database) == size and memcmp(PyBytes_AS_STRING(self.database), database, size) == 0


def caller_of(principal, place, pool):
    """`new_caller`, for tests."""
    return new_caller(principal, place, pool)


def sends(Caller caller not None, bytes secret not None, bytes database):
    """Whether a request with these two is a caller's own, for tests."""
    cdef bytes name = b"" if database is None else database
    if len(secret) != SECRET_SIZE:
        raise ValueError("a secret has one size")
    return caller.has_sent(secret) and caller.has_named(name, len(name))


cdef Caller new_caller(principal, place, pool):
    cdef Caller caller = Caller()
    caller.principal, caller.place, caller.limits = principal, place, TIERS[principal.tier]
    caller.without_code = place.without_code and place.certain
    caller.is_read_only = place.address.read_only
    caller.has_rate_limit = caller.limits.requests_per_minute is not None
    caller.log_names = b'","error_code":null,"organization_id":"%b","key_id":"%b","trace_id":' % (
        principal.organization_id.encode(), principal.key_id.encode()
    )
    caller.pool, caller.admission, caller.queue = pool, pool.admission, pool.queue
    caller.leader, caller.catalog, caller.idle = pool.cell.leader, pool.catalog, pool.idle
    return caller
