# cython: language_level=3
"""The callers that a route knows, by what they send: a secret, and the name of a database or none.

    callers.add(caller, secret, database)
    callers.find(secret, database)    # the same one, or None

All connections share them, because behind a proxy the clients do not have connections of their own.

The secrets are kept as they are sent, as the cache of principals keeps them, and no longer than there: a change
notification drops those of its organization from both. A caller that is dropped has no secret any more, so a connection
that still refers to it cannot take a request for one of that caller.
"""

from itertools import islice

from plainsql_server.lane.known_head cimport SECRET_SIZE

# One has less than a kilobyte.
MAX_CALLERS = 4_096
# How many are dropped at once if there are too many.
cdef int DROPPED = MAX_CALLERS // 8


cdef class Callers:
    """The callers of one route. They may be out of date: see `Caller`."""

    def __init__(self):
        self.by_sent = {}

    cpdef Caller find(self, bytes secret, bytes database):
        return <Caller>self.by_sent.get((secret, database))

    cpdef int add(self, Caller caller, bytes secret, bytes database) except -1:
        """Keeps a caller, in the place of another one that has sent the same."""
        cdef Caller other = self.find(secret, database)
        if secret is None or len(secret) != SECRET_SIZE:
            # `Caller.has_sent` relies on it.
            raise ValueError("a secret has one size")
        if other is caller:
            return 0
        if other is not None:
            self.drop(other)
        if len(self.by_sent) >= MAX_CALLERS:
            for other in list(islice(self.by_sent.values(), DROPPED)):
                self.drop(other)
        caller.secret, caller.database = secret, database
        self.by_sent[secret, database] = caller
        return 0

    cdef int drop(self, Caller caller) except -1:
        del self.by_sent[caller.secret, caller.database]
        caller.secret = None
        return 0

    cpdef int forget(self, organization_id) except -1:
        """Drops the callers of an organization, or all for None."""
        cdef Caller caller
        for caller in list(self.by_sent.values()):
            if organization_id is None or caller.principal.organization_id == organization_id:
                self.drop(caller)
        return 0
