"""Whether a cell accepts connections.

Owns the probe role: it may connect to one empty database and nothing else.
"""

from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.leader import leading

PROBE_ROLE = "plainsql_probe"
PROBE_DATABASE = "postgres"
_TIMEOUT_S = 2.0


async def check_cell(conninfo: str) -> None:
    """Connects to the server that leads and closes again. Raises EngineError if none accepts that in time."""
    await leading(probes(conninfo), _TIMEOUT_S)


def probes(conninfo: str) -> tuple[bytes, ...]:
    """Connection strings of the probe role, one for each host of the cell."""
    return Address(conninfo, PROBE_DATABASE, PROBE_ROLE).ways(int(_TIMEOUT_S * 1000))
