"""How many of a cell's connections a process may have open.

    share = Share(processes=2)             # as configured
    share.count(processes=2)               # as counted, at each renewal of this process in the directory
    share.of(max_connections=1_596)        # 768

The processes divide what the cell allows, without what the service's own work and its operators need. They learn at
different times how many they are, and must not exceed the limit meanwhile. So a process takes less at once, and more
only when the number has stayed the same for some renewals.
"""

# For the service's own statements, provisioning, backups and operators. Includes those reserved for superusers.
OTHER_CONNECTIONS = 60
# With fewer, a process could not serve several organizations at once.
_FEWEST = 8
# What a process has until the others know that they have to give up its share. Two that join at once find as many in
# what the shares leave, while the others still use all of theirs.
FIRST_CONNECTIONS = OTHER_CONNECTIONS // 2
# By then, each process has renewed its entry, and one that has left has closed its connections.
_RENEWALS_TO_SETTLE = 3


def share_of(max_connections: int, processes: int) -> int:
    """The share of one of so many processes in a cell that allows `max_connections`."""
    return max(_FEWEST, (max_connections - OTHER_CONNECTIONS) // processes)


class Share:
    """The share of this process, as the number of processes changes."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._counted = 0
        self._renewals = 0
        self._has_settled = False

    def count(self, processes: int) -> None:
        """Notes how many processes there are now, this one included."""
        is_first = self._counted == 0
        self._renewals = self._renewals + 1 if processes == self._counted else 1
        self._counted = processes
        is_stable = self._renewals >= _RENEWALS_TO_SETTLE
        if is_first or is_stable or processes > self._processes:
            self._processes = processes
        # A process that is alone has no other to wait for; but the others may be late to renew their entries.
        self._has_settled |= is_stable or (processes == 1 and self._renewals > 1)

    def of(self, max_connections: int) -> int:
        """The connections that this process may have to a cell that allows so many."""
        share = share_of(max_connections, self._processes)
        return share if self._has_settled else min(share, FIRST_CONNECTIONS)
