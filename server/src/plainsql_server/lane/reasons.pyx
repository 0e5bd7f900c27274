# cython: language_level=3, boundscheck=False, wraparound=False
"""Why requests do not take the lane, or do not reach its end: counters for the metrics.

    reasons.counts[SLOW] += 1
    reasons.by_name()    # {"slow": 1, …}
"""

# In the order of `Reason`.
NAMES = (
    # Not the bytes that the parser has read before on the connection: its first request, or another route.
    "head",
    # A body that the lane does not read: new, with arrays or escapes, too long, with a near deadline.
    "body",
    # The key or its database is not cached.
    "caller",
    # It stores the first code in its database; or it is read-only or a transaction, and needs guards, because it could
    # change its mode.
    "options",
    # No connection to the engine is idle.
    "connection",
    # The connection has not prepared a statement of it, or the parameters do not fit.
    "statement",
    # The session must be cleaned first.
    "session",
    # No permit is at hand.
    "rate_limit",
    # The admission queue is full, or too long for the deadline.
    "overload",
    # The client does not read its answers.
    "unread",
    # The ordinary path is still answering an earlier request of the connection.
    "pipelined",
    # PostgreSQL reported an error, or the connection to it broke.
    "error",
    # More rows than one chunk, or more than arrived at once; of a transaction, more than the lane holds, or what may be
    # part of a large result.
    "large",
    # A type that must be looked up, or a value that has no JSON.
    "type",
    # It took 25 ms.
    "slow",
    # Its deadline came near while it waited for a slot.
    "deadline",
    # The client disconnected.
    "client_lost",
    # The key or its database changed, or had to be looked up again, while the request waited for a slot.
    "changed",
    # PostgreSQL sent a notice, which the ordinary path adds to the answer.
    "notice",
    # The service stops.
    "stopping",
    # The setting `fast_lane` ends the lane after each of its steps.
    "test",
)
if len(NAMES) != REASON_COUNT:
    raise ImportError("each reason needs a name")


cdef class Reasons:
    """A counter for each reason."""

    def by_name(self):
        """All counters."""
        return {name: self.counts[index] for index, name in enumerate(NAMES)}
