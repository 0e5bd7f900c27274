"""Checks whether a cell accepts connections, with a probe role that may only connect to one empty database."""

from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.leader import leading

PROBE_ROLE = "plainsql_probe"
PROBE_DATABASE = "postgres"
_TIMEOUT_S = 2.0


async def check_cell(conninfo: str) -> None:
    """Connects to the cell's primary and disconnects. Raises EngineError if no primary accepts in time."""
    await leading(probes(conninfo), _TIMEOUT_S)


def probes(conninfo: str) -> tuple[bytes, ...]:
    """The probe role's connection strings, one for each host of the cell."""
    return Address(conninfo, PROBE_DATABASE, PROBE_ROLE).conninfos(int(_TIMEOUT_S * 1000))
