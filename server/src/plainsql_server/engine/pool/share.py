"""How many of a cell's connections a process may have open.

    connections_of(max_connections=1_596, share=share)     # 768 for one of two processes
    parts_of(max_connections=1_596, connections=768, processes=2)    # and the other way: half of WHOLE

The processes divide what the cell allows, without what the service's own work and its operators need. `core/share.py`
says which part this process holds. Some connections are guaranteed to each process, whatever its share.
"""

from plainsql_server.core.share import WHOLE, Share

# For the service's own statements, provisioning, backups and operators. Includes those reserved for superusers.
OTHER_CONNECTIONS = 60
# With fewer, a process could not serve several organizations at once.
_FEWEST = 8
# What a process has until the others have given up its share. Two that join at once find as many in what the shares
# leave, while the others still use all of theirs.
FIRST_CONNECTIONS = OTHER_CONNECTIONS // 2


def share_of(max_connections: int, processes: int) -> int:
    """The equal share of one of so many processes in a cell that allows `max_connections`."""
    return max(_FEWEST, (max_connections - OTHER_CONNECTIONS) // processes)


def guaranteed(max_connections: int, processes: int) -> int:
    """What each of so many processes may have without a share."""
    return min(FIRST_CONNECTIONS, share_of(max_connections, processes))


def connections_of(max_connections: int, share: Share) -> int:
    """The connections that this process may have now."""
    return max(guaranteed(max_connections, share.processes), share.part_of(max_connections - OTHER_CONNECTIONS))


def parts_of(max_connections: int, connections: int, processes: int) -> int:
    """The parts of WHOLE that so many connections of one of so many processes are: none if they are guaranteed."""
    if connections <= guaranteed(max_connections, processes):
        return 0
    return min(WHOLE, -(-connections * WHOLE // max(1, max_connections - OTHER_CONNECTIONS)))
