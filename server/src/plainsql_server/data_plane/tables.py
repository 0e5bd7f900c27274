"""Lists the tables of a customer's database.

It first asks PostgreSQL only whether they have changed, and reads them only if the caller's version is outdated.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.service_connections import ServiceConnection, ServiceConnections
from plainsql_server.engine.connection.batch import SAFE_PATH
from plainsql_server.engine.execution.tables import BEGIN, HAS_CHANGED, Detail, list_tables
from plainsql_server.limits.tiers import TIERS


@dataclass(slots=True)
class TableList:
    """The tables, each as JSON. None if the caller already has this version."""

    version: str
    tables: list[bytes] | None
    truncated: bool
    queue_us: int
    exec_us: int


class Tables:
    """Lists tables."""

    def __init__(self, connections: ServiceConnections) -> None:
        self._connections = connections

    async def list_(
        self, principal: Principal, database: str | None, schema: str | None, detail: Detail,
        is_known: Callable[[str], bool],
    ) -> TableList:  # fmt: skip
        """The tables, unless `is_known` returns that the caller has this version. Raises ServiceError."""
        at_most = TIERS[principal.tier].result_rows
        async with self._connections.open(principal, database) as service:
            *_, digests = await service.run(BEGIN, SAFE_PATH, HAS_CHANGED[detail])
            # PostgreSQL's parallel workers may return the digests in any order.
            found = sorted(value or b"" for row in digests.rows for value in row)
            version = _version(found, service.place.database_id, schema, detail, at_most)
            tables = None if is_known(version) else await _tables(service, schema, detail, at_most)
            await service.run(b"commit")
            service.left_nothing()
            truncated = tables is not None and len(tables) > at_most
            return TableList(version, tables and tables[:at_most], truncated, service.queue_us, service.exec_us)


async def _tables(service: ServiceConnection, schema: str | None, detail: Detail, at_most: int) -> list[bytes]:
    # One extra table proves that there are more.
    (listed,) = await service.run(list_tables(schema, detail, at_most + 1))
    return [row[0] for row in listed.rows if row[0] is not None]


def _version(digests: list[bytes], database_id: str, schema: str | None, detail: Detail, at_most: int) -> str:
    """The version of this answer: a hash of everything that determines it."""
    parts = [b"1", *digests, database_id.encode(), repr(schema).encode(), detail.encode()]
    return hashlib.sha256(b"\0".join([*parts, b"%d" % at_most])).hexdigest()[:32]
