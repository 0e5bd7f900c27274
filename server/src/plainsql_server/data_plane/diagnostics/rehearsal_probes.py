"""Probes of rehearsed transactions: dry runs, digests and frozen INSERTs. See `probes.py` for what a probe returns."""

import msgspec

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.result import FrozenInsert
from plainsql_server.data_plane.diagnostics.probe_context import ProbeContext, ProbeFinding, evidence_of
from plainsql_server.data_plane.transaction_request import TransactionStatement
from plainsql_server.engine.execution.plan import ExpectedDigest

_NOTES = "create table {s}.notes (id uuid default gen_random_uuid() primary key, body text)"


async def dry_runs(context: ProbeContext) -> ProbeFinding:
    """A dry run returns the rows that it inserts, and leaves none."""
    async with context.schema(_NOTES) as schema:
        insert = TransactionStatement(f"insert into {schema}.notes (body) values ('a') returning body")
        (result,) = await context.transaction(insert, dry_run=True)
        left = (await context.row(f"select count(*) as found from {schema}.notes"))["found"]
    rows = [msgspec.json.decode(row) for row in result.rows]
    return ProbeFinding(rows == [{"body": "a"}] and left == 0, {"returned": rows, "rows_left": left})


async def result_digests(context: ProbeContext) -> ProbeFinding:
    """A transaction with the digest of an earlier read commits once; then the read has changed, and it fails."""
    async with context.schema(_NOTES) as schema:
        read = f"select body from {schema}.notes"
        (result,) = await context.transaction(TransactionStatement(read, digest=True), dry_run=True)
        digest = "" if result.digests is None else result.digests.ordered
        verified = TransactionStatement(read, expect=ExpectedDigest(digest, is_ordered=True), rows=False)
        write = TransactionStatement(f"insert into {schema}.notes (body) values ('a')")
        await context.transaction(verified, write)
        failed = {}
        try:
            await context.transaction(verified, write)
        except ServiceError as error:
            failed = evidence_of(error)
        left = (await context.row(f"select count(*) as found from {schema}.notes"))["found"]
    evidence = {"digest": digest, "failure": failed, "rows": left}
    return ProbeFinding(failed.get("sqlstate") == "40001" and left == 1, evidence)


async def frozen_inserts(context: ProbeContext) -> ProbeFinding:
    """What a default gave a row in a dry run is what the row has after the commit."""
    async with context.schema(_NOTES) as schema:
        insert = TransactionStatement(f"insert into {schema}.notes (body) values ('a') returning id", freeze=True)
        (rehearsed,) = await context.transaction(insert, dry_run=True)
        if not isinstance(rehearsed.frozen, FrozenInsert):
            return ProbeFinding(False, {"frozen": None, "reason": rehearsed.frozen})
        frozen = rehearsed.frozen
        await context.transaction(TransactionStatement(frozen.sql, [msgspec.json.encode(frozen.rows)]))
        stored = await context.row(f"select id from {schema}.notes")
    returned = msgspec.json.decode(rehearsed.rows[0])
    return ProbeFinding(stored == returned, {"rehearsed": returned, "stored": stored})
