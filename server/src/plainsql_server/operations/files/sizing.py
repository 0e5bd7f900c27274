"""How many connections and locks a cell has, from its memory, and how often autovacuum visits its databases.

    max_connections(24 * GIB)        # 1596: 1536 for tenants, 60 for the service and its operators
    locks_per_transaction(1596)      # 81
    shortest_naptime_s(10_000)       # 12000

`cell files` and `dev` write these numbers, and `doctor` compares a running cell with them.
"""

import math

from plainsql_server.engine.pool.share import OTHER_CONNECTIONS

GIB = 1024**3

# An idle backend has 1.5 MB of its own. Prepared statements and the catalog caches of large schemas multiply that.
_CONNECTION_BYTES = 4 * 1024**2
# Idle connections get a quarter of the memory. The rest is for shared buffers, the page cache and running statements.
_CONNECTIONS_SHARE = 4
# With fewer, a few busy databases already compete for connections.
_FEWEST_TENANT_CONNECTIONS = 200
# Each backend also costs time: every snapshot looks at all of them, and every one must be ended at a shutdown.
_MOST_TENANT_CONNECTIONS = 2_000
# For superusers, among those that `share.py` leaves to the service and its operators.
RESERVED_CONNECTIONS = 10
# Transactions that span databases and are prepared at the same time. Each has a share of the lock table, too.
PREPARED_TRANSACTIONS = 64

# Entries of the lock table, which all tenants share. One tenant's transaction over some thousand tables must not fill
# it. PostgreSQL allocates it at the start, with predicate locks some 500 bytes per entry, so more connections must not
# make it larger.
_LOCK_ENTRIES = 135_000
_FEWEST_LOCKS_PER_TRANSACTION = 64

# Autovacuum visits each database once in its naptime, also an idle one, which takes some 4 ms. At this pace, the visits
# take 1.4 % of a core. With PostgreSQL's naptime of a minute, a thousand databases would take 7 %.
_NAPTIME_PER_DATABASE_S = 0.3
# Before each visit, the launcher looks at all databases, which takes 12 µs for each. With many databases, that is more
# than the visits: with 10,000 databases and a naptime of 3,000 s, 0.4 of a core. At this pace it is a tenth of a core.
_NAPTIME_PER_SQUARE_S = 12e-5
_FEW_DATABASES = 500


def shortest_naptime_s(databases: int) -> int:
    """Return the least `autovacuum_naptime` for a cell with so many databases, in whole minutes. 0: any will do."""
    if databases <= _FEW_DATABASES:
        return 0
    least_s = max(300, databases * _NAPTIME_PER_DATABASE_S, databases**2 * _NAPTIME_PER_SQUARE_S)
    return math.ceil(least_s / 60) * 60


def tenant_connections(memory_bytes: int | None) -> int:
    """Return how many connections of tenants a cell with this memory can have open. None: as few as any cell has."""
    fitting = (memory_bytes or 0) // _CONNECTIONS_SHARE // _CONNECTION_BYTES
    return min(max(fitting, _FEWEST_TENANT_CONNECTIONS), _MOST_TENANT_CONNECTIONS)


def max_connections(memory_bytes: int | None) -> int:
    """Return the `max_connections` of a cell with this memory."""
    return tenant_connections(memory_bytes) + OTHER_CONNECTIONS


def locks_per_transaction(connections: int, prepared_transactions: int = PREPARED_TRANSACTIONS) -> int:
    """Return the `max_locks_per_transaction` that gives the lock table its size."""
    return max(_LOCK_ENTRIES // (connections + prepared_transactions), _FEWEST_LOCKS_PER_TRANSACTION)
