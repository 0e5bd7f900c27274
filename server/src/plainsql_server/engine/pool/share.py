"""How many of a cell's connections a process may have open.

    share_of(max_connections=1_596, processes=2)    # 768

The processes divide what the cell allows, without what the service's own work and its operators need.
"""

# For the service's own statements, provisioning, backups and operators. Includes those reserved for superusers.
OTHER_CONNECTIONS = 60
# With fewer, a process could not serve several organizations at once.
_FEWEST = 8
# What a process has until it knows its share, or until the other processes know that they have to give it up.
FIRST_CONNECTIONS = 64


def share_of(max_connections: int, processes: int) -> int:
    """The share of one of so many processes in a cell that allows `max_connections`."""
    return max(_FEWEST, (max_connections - OTHER_CONNECTIONS) // processes)
