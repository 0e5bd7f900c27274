"""What the service can do, by name, and the probe that tries each of it.

Owns the table. `supported` there is what this version means to offer; the probe says whether it does, on the database
that it is asked for. What people look for and will not find is in the table, too, and is tried like the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import AccessError, StatementError
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.diagnostics import probes, sql_probes
from plainsql_server.data_plane.diagnostics.probe_context import Executors, Finding, Probe, ProbeContext, said

_FIRST = "0.61.0"


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that a caller may count on, or may not."""

    description: str
    probe: Probe
    supported: bool = True
    since: str | None = _FIRST


CAPABILITIES: Mapping[str, Capability] = MappingProxyType(
    {
        "serializable_isolation": Capability(
            "Transactions behave as if they ran one after the other.", probes.serializable_isolation
        ),
        "atomic_transactions": Capability(
            "All statements of a transaction take effect, or none.", probes.atomic_transactions
        ),
        "transaction_references": Capability(
            "A statement's parameter can be a value of an earlier result.", probes.transaction_references
        ),
        "transaction_expectations": Capability(
            "A transaction can be made to depend on its results.", probes.transaction_expectations
        ),
        "idempotency_keys": Capability("A request can be sent twice and is done once.", probes.idempotency_keys),
        "streaming": Capability("Rows can be had as PostgreSQL makes them.", probes.streaming),
        "parameters": Capability("Values travel apart from the SQL.", probes.parameters),
        "exact_numbers": Capability("Numbers keep every digit.", probes.exact_numbers),
        "read_only_requests": Capability("A request can give up the right to write.", probes.read_only_requests),
        "statement_deadline": Capability("A statement ends at its deadline.", probes.statement_deadline),
        "constraints": Capability(
            "Primary, unique and foreign keys, and checks, are enforced.", sql_probes.constraints
        ),
        "deferred_constraints": Capability(
            "Constraints can wait for the end of a transaction.", sql_probes.deferred_constraints
        ),
        "upsert": Capability("INSERT … ON CONFLICT.", sql_probes.upsert),
        "merge": Capability("MERGE.", sql_probes.merge),
        "json_documents": Capability("JSON in columns, searched by content and path.", sql_probes.json_documents),
        "full_text_search": Capability("Words found in their inflected forms.", sql_probes.full_text_search),
        "window_functions": Capability("Aggregates over a row's neighbours.", sql_probes.window_functions),
        "recursive_queries": Capability("WITH RECURSIVE.", sql_probes.recursive_queries),
        "generated_columns": Capability("Columns that are computed, or counted up.", sql_probes.generated_columns),
        "partitioned_tables": Capability("Tables in parts, by a column's value.", sql_probes.partitioned_tables),
        "views": Capability("Queries with a name.", sql_probes.views),
        "materialized_views": Capability("Queries whose result is kept.", sql_probes.materialized_views),
        "functions": Capability("Functions in SQL and PL/pgSQL.", sql_probes.functions),
        "triggers": Capability("Functions that run when rows change.", sql_probes.triggers),
        "row_level_security": Capability("Policies that say who sees which rows.", sql_probes.row_level_security),
        "large_objects": Capability("Objects beyond what a row holds.", sql_probes.large_objects),
        "interactive_transactions": Capability(
            "BEGIN in one request and COMMIT in another. Send a transaction whole instead.",
            probes.refused("begin"), supported=False, since=None,
        ),
        "listen_notify": Capability(
            "LISTEN and NOTIFY, which need a lasting connection.",
            probes.refused("listen plainsql_probe"), supported=False, since=None,
        ),
        "copy": Capability(
            "COPY, which needs a protocol of its own. Send INSERT with parameters, or read a stream.",
            probes.refused("copy (select 1) to stdout"), supported=False, since=None,
        ),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe found, and how long it took."""

    finding: Finding
    latency_us: int


class Capabilities:
    """Runs probes."""

    def __init__(self, executors: Executors) -> None:
        self._executors = executors

    async def probe(self, principal: Principal, database: str | None, name: str) -> Probed:
        """Tries a capability. Raises AccessError if there is none of that name; ServiceError if it cannot be tried."""
        capability = CAPABILITIES.get(name)
        if capability is None:
            raise AccessError(
                "capability_not_found", f"There is no capability {name!r}.", hint="GET /capabilities lists them."
            )
        # Some probes never get as far as the database; a wrong one is an error all the same.
        await self._executors.connections.place(principal, database)
        async with self._executors.schemas.slot(principal):
            began_us = monotonic_us()
            finding = await self._find(capability, ProbeContext(principal, database, self._executors))
            return Probed(finding, monotonic_us() - began_us)

    async def _find(self, capability: Capability, context: ProbeContext) -> Finding:
        try:
            return await capability.probe(context)
        except StatementError as error:
            # The engine refuses what the probe is made of: that is what whoever relies on it would meet.
            return Finding(False, {"failed": said(error)})
