"""Whether a cell accepts connections.

Owns the probe role: it may connect to one empty database and nothing else.
"""

from plainsql_server.engine.address import Address
from plainsql_server.engine.connection import Connection

PROBE_ROLE = "plainsql_probe"
PROBE_DATABASE = "postgres"
_TIMEOUT_S = 2.0


async def check_cell(conninfo: str) -> None:
    """Connects and closes again. Raises EngineError if the cell does not accept that in time."""
    address = Address(conninfo, PROBE_DATABASE, PROBE_ROLE)
    connection = await Connection.open(address.conninfo(int(_TIMEOUT_S * 1000)), _TIMEOUT_S)
    connection.close()
