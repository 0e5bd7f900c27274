"""The capabilities of the service, by name, each with a probe that tests it.

`supported` is what this version promises. The probe shows whether it holds in a given database. Features that users may
expect but that are not supported are listed, too, and probed like the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import AccessError, StatementError
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.diagnostics import probes, rehearsal_probes, sql_probes
from plainsql_server.data_plane.diagnostics.probe_context import (
    Executors,
    Probe,
    ProbeContext,
    ProbeFinding,
    evidence_of,
)

_FIRST = "0.61.0"


@dataclass(frozen=True, slots=True)
class Capability:
    """A feature, and whether it is supported."""

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
            "A parameter can be a value from an earlier statement's result.", probes.transaction_references
        ),
        "transaction_expectations": Capability(
            "A transaction can be rolled back unless its results match.", probes.transaction_expectations
        ),
        "dry_runs": Capability(
            "A transaction can be rehearsed: it runs, and is rolled back.", rehearsal_probes.dry_runs
        ),
        "result_digests": Capability(
            "A transaction can be rolled back unless a result is still the same.",
            rehearsal_probes.result_digests,
        ),
        "frozen_inserts": Capability(
            "A rehearsed INSERT can be repeated with the same generated values.",
            rehearsal_probes.frozen_inserts,
        ),
        "idempotency_keys": Capability("A request that is sent twice takes effect once.", probes.idempotency_keys),
        "streaming": Capability("Rows are sent while PostgreSQL produces them.", probes.streaming),
        "parameters": Capability("Values are sent separately from the SQL.", probes.parameters),
        "exact_numbers": Capability("Numbers keep every digit.", probes.exact_numbers),
        "read_only_requests": Capability("A request can be restricted to reading.", probes.read_only_requests),
        "statement_deadline": Capability("A statement is cancelled at its deadline.", probes.statement_deadline),
        "constraints": Capability(
            "Primary keys, unique constraints, foreign keys and checks are enforced.", sql_probes.constraints
        ),
        "deferred_constraints": Capability(
            "Constraints can be checked at the end of a transaction.", sql_probes.deferred_constraints
        ),
        "upsert": Capability("INSERT … ON CONFLICT.", sql_probes.upsert),
        "merge": Capability("MERGE.", sql_probes.merge),
        "json_documents": Capability("JSON columns, searchable by content and path.", sql_probes.json_documents),
        "full_text_search": Capability("Search that finds inflected forms, too.", sql_probes.full_text_search),
        "window_functions": Capability("Aggregates over related rows.", sql_probes.window_functions),
        "recursive_queries": Capability("WITH RECURSIVE.", sql_probes.recursive_queries),
        "generated_columns": Capability("Computed columns and identity columns.", sql_probes.generated_columns),
        "partitioned_tables": Capability("Tables split by a column's value.", sql_probes.partitioned_tables),
        "views": Capability("Named queries.", sql_probes.views),
        "materialized_views": Capability("Views whose result is stored.", sql_probes.materialized_views),
        "functions": Capability("Functions in SQL and PL/pgSQL.", sql_probes.functions),
        "triggers": Capability("Functions that run when rows change.", sql_probes.triggers),
        "row_level_security": Capability("Policies that limit which rows a role sees.", sql_probes.row_level_security),
        "large_objects": Capability("Binary objects too large for a row.", sql_probes.large_objects),
        "extensions": Capability(
            "CREATE EXTENSION. The view pg_available_extensions lists what can be created.", sql_probes.extensions
        ),
        "interactive_transactions": Capability(
            "BEGIN in one request and COMMIT in another. Send all statements of the transaction together instead.",
            probes.refused("begin"), supported=False, since=None,
        ),
        "listen_notify": Capability(
            "LISTEN and NOTIFY, which need a persistent connection.",
            probes.refused("listen plainsql_probe"), supported=False, since=None,
        ),
        "copy": Capability(
            "COPY, which needs its own protocol. Use INSERT with parameters, or read a stream.",
            probes.refused("copy (select 1) to stdout"), supported=False, since=None,
        ),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe found, and how long it took."""

    finding: ProbeFinding
    latency_us: int


class Capabilities:
    """Runs probes."""

    def __init__(self, executors: Executors) -> None:
        self._executors = executors

    async def probe(self, principal: Principal, database: str | None, name: str) -> Probed:
        """Probes a capability. Raises AccessError if there is no such one, ServiceError if the probe can't run."""
        capability = CAPABILITIES.get(name)
        if capability is None:
            raise AccessError(
                "capability_not_found", f"There is no capability {name!r}.", hint="GET /capabilities lists them."
            )
        # Some probes never reach the database. An invalid database is an error for them, too.
        await self._executors.connections.place(principal, database)
        async with self._executors.schemas.slot(principal):
            began_us = monotonic_us()
            finding = await self._find(capability, ProbeContext(principal, database, self._executors))
            return Probed(finding, monotonic_us() - began_us)

    async def _find(self, capability: Capability, context: ProbeContext) -> ProbeFinding:
        try:
            return await capability.probe(context)
        except StatementError as error:
            # PostgreSQL rejects a statement of the probe. A user of the feature would get the same error.
            return ProbeFinding(False, {"failed": evidence_of(error)})
