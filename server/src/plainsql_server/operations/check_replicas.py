"""Doctor's checks of a cell's standbys: every machine but the leader is a standby, and at least one is synchronous.

Also finds standbys behind a connection string with a single host. `engine/admin/activity.py` and
`engine/admin/examining.py` query the servers.
"""

from collections.abc import Iterator

from plainsql_server.engine.admin.activity import CellView
from plainsql_server.engine.admin.examining import CellFacts
from plainsql_server.engine.pool.address import hosts_of
from plainsql_server.operations.findings import Finding, broken, good, warning

# PostgreSQL's names for standbys that commits wait for.
_IN_STEP = frozenset(["sync", "quorum"])
_FIX = "Check the other machines with `patronictl list`. Their logs say why they don't replicate."


def standbys(check: str, conninfo: str, seen: CellView) -> Iterator[Finding]:
    """Check the leader and its standbys, for a cell with several hosts."""
    wanted = len(hosts_of(conninfo)) - 1
    if not wanted:
        return
    standbys = [replica for replica in seen.replicas if replica.state == "streaming"]
    names = ", ".join(sorted(replica.name for replica in standbys)) or "none"
    if not any(replica.sync_state in _IN_STEP for replica in standbys):
        yield broken(check, f"{seen.server} leads without a synchronous standby: every write waits for one.", _FIX)
    elif len(standbys) < wanted:
        yield warning(check, f"{seen.server} leads {len(standbys)} of {wanted} standbys: {names}.", _FIX)
    else:
        yield good(check, f"{seen.server} leads; standbys: {names}.")


def hidden(check: str, conninfo: str, facts: CellFacts) -> Iterator[Finding]:
    """Find standbys behind a single host. The service treats such a cell as one server."""
    if facts.settings["synchronous_standby_names"] and len(hosts_of(conninfo)) == 1:
        yield warning(
            check, "Its commits wait for standbys, but its connection string has one host: a deadline can cancel that"
            " wait, and clients can then read commits that a failover loses.",
            "List every server in it, with target_session_attrs=primary: `plainsql-server cell set --conninfo`.",
        )  # fmt: skip
