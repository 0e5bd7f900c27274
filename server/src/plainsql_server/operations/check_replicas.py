"""Checks of a cell's standbys: that as many follow as it has machines beside the leader, and one of them in step.

Owns what a cell of several hosts must have, and finds those that hide behind one. What a host says,
`engine/admin/activity.py` and `engine/admin/examining.py` ask.
"""

from collections.abc import Iterator

from plainsql_server.engine.admin.activity import CellView
from plainsql_server.engine.admin.examining import CellFacts
from plainsql_server.engine.pool.address import hosts_of
from plainsql_server.operations.findings import Finding, broken, good, warning

# As PostgreSQL calls standbys that commits wait for.
_IN_STEP = frozenset(["sync", "quorum"])
_MEND = "Look at the other machines with `patronictl list`; their logs say why they do not follow."


def following(check: str, conninfo: str, seen: CellView) -> Iterator[Finding]:
    """Who leads and who follows, for a cell that is reached at several hosts."""
    wanted = len(hosts_of(conninfo)) - 1
    if not wanted:
        return
    following = [replica for replica in seen.replicas if replica.state == "streaming"]
    names = ", ".join(sorted(replica.name for replica in following)) or "nobody"
    if not any(replica.sync_state in _IN_STEP for replica in following):
        yield broken(check, f"{seen.server} leads, and no standby is in step: every write waits for one.", _MEND)
    elif len(following) < wanted:
        yield warning(check, f"{seen.server} leads, and {names} of {wanted} standbys follows.", _MEND)
    else:
        yield good(check, f"{seen.server} leads; {names} follow.")


def hidden(check: str, conninfo: str, facts: CellFacts) -> Iterator[Finding]:
    """Servers behind one address: whatever is done for a cell of several hosts is not done for them."""
    if facts.settings["synchronous_standby_names"] and len(hosts_of(conninfo)) == 1:
        yield warning(
            check, "Its commits wait for standbys, but its connection string has one host: deadlines cancel that wait,"
            " and others can read what a fail-over takes back.",
            "Name every server in it, with target_session_attrs=primary: `plainsql-server cell set --conninfo`.",
        )  # fmt: skip
