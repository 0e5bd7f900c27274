"""Checks of the cells: that each can be reached, is new enough, closed to strangers, large enough, and complete.

Owns what a good cell is. What it is like, `engine/admin/examining.py` says.
"""

from collections.abc import AsyncIterator, Iterator

from psycopg.conninfo import conninfo_to_dict

from plainsql_server.core.errors import ServiceError
from plainsql_server.directory import cells as stored
from plainsql_server.directory import counts
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin.activity import view, watching
from plainsql_server.engine.admin.examining import CellFacts, examine
from plainsql_server.engine.admin.provisioning import TEMPLATE
from plainsql_server.engine.pool.health import PROBE_ROLE, check_cell
from plainsql_server.operations.check_directory import clock, mend_of
from plainsql_server.operations.check_machine import disk
from plainsql_server.operations.check_replicas import following, hidden
from plainsql_server.operations.findings import Finding, Target, broken, good, warning
from plainsql_server.settings import Settings

# Connections that operators, backups and provisioning take beside the data planes.
_OTHERS = 16
# PostgreSQL stops taking writes at two thousand million; it should vacuum long before.
_XID_AGE_WARNING = 1_000_000_000
_SLOT_BYTES_WARNING = 10_000_000_000
_CONNINFO = "the cell's connection string, with `plainsql-server cell set --conninfo`"
# No role of a cell is reached by a password, so that none can be missing or wrong.
_NO_PASSWORDS = "Have its pg_hba.conf ask for no password: `plainsql-server cell files` writes one that fits."
_AGAIN = "Run `plainsql-server upgrade`, which prepares each cell again."


async def cells(target: Target) -> AsyncIterator[Finding]:
    """Whether every cell can do its work."""
    async with Directory.open(target.settings.directory_dsn, max_connections=1) as directory:
        try:
            listed = await stored.list_(directory)
        except ServiceError as error:
            yield broken(
                "cells", "No cell can be looked up without the directory.", error.hint or "Mend the directory first."
            )
            return
        if not any(cell.state is CellState.ACTIVE for cell in listed):
            yield broken("cells", "No cell takes new databases.", "Add one with `plainsql-server cell add`.")
        for cell in listed:
            for finding in await _cell(target, directory, cell):
                yield finding


async def _cell(target: Target, directory: Directory, cell: CellRecord) -> list[Finding]:
    check = f"cell {cell.name}"
    try:
        async with watching(cell.conninfo, cell.admin_role) as connection:
            facts = await examine(connection)
            clocks = await clock(check, connection)
            seen = await view(connection)
    except ServiceError as error:
        why = " ".join((error.internal_context or error.message).split())
        return [broken(check, f"The cell cannot be reached as {cell.admin_role}: {why}", _mend(why))]
    findings = [clocks, *_fitness(check, facts), *_guard(check, facts), *_room(check, facts, target.settings)]
    findings += [*following(check, cell.conninfo, seen), *hidden(check, cell.conninfo, facts)]
    findings += [*_durability(check, facts), *await _databases(check, directory, cell, facts)]
    findings += await _probe(check, cell, facts)
    findings += _disk(check, cell, facts, target.disk_free_percent)
    return findings


def _mend(why: str) -> str:
    return _NO_PASSWORDS if "password" in why else mend_of(why, _CONNINFO)


def _fitness(check: str, facts: CellFacts) -> Iterator[Finding]:
    if facts.version_floor is None:
        yield broken(
            check, f"PostgreSQL {facts.version_text} was never tried as a cell.", "Use a release that was: 15 to 18."
        )
    elif facts.is_too_old:
        yield broken(
            check, f"PostgreSQL {facts.version_text} has known holes; {facts.version_floor} is the oldest allowed.",
            "Install the newest minor release; it needs a restart and no dump.",
        )  # fmt: skip
    else:
        yield good(check, f"PostgreSQL {facts.version_text} is new enough.")
    if not facts.is_superuser:
        yield broken(check, "The admin role is no superuser.", "Run `ALTER ROLE … SUPERUSER` on the cell.")
    template = facts.template
    if template is None:
        yield broken(check, f"The template database {TEMPLATE} is missing: no database can be created.", _AGAIN)
    elif template.is_open or not template.is_template or template.encoding != "UTF8" or not template.is_ours:
        yield broken(
            check, f"The template database {TEMPLATE} was changed: a template must be closed, UTF8 and the admin's.",
            _AGAIN,
        )  # fmt: skip


def _guard(check: str, facts: CellFacts) -> Iterator[Finding]:
    if facts.open_to_all:
        yield broken(check, f"PUBLIC may connect to {', '.join(facts.open_to_all)}: every customer gets in.", _AGAIN)
    for rule in facts.open_network:
        yield broken(
            check, f"pg_hba.conf trusts whoever comes over the network ({rule}).",
            "Let it ask for a certificate (`cert`) or a password, and reload PostgreSQL.",
        )  # fmt: skip
    if facts.settings["log_statement"] != "none" or facts.settings["log_min_error_statement"] not in ("fatal", "panic"):
        yield warning(
            check, "Customers' SQL gets into the cell's log.",
            "Set log_statement = none and log_min_error_statement = panic.",
        )  # fmt: skip


def _room(check: str, facts: CellFacts, settings: Settings) -> Iterator[Finding]:
    reserved = facts.number("superuser_reserved_connections")
    allowed = facts.number("max_connections") - reserved
    processes = settings.nodes * settings.workers
    needed = processes * settings.cell_max_connections + _OTHERS
    if allowed < needed:
        fitting = max(1, (allowed - _OTHERS) // processes)
        yield broken(
            check, f"It allows {allowed} connections, and {processes} processes of the data plane may need {needed}.",
            f"Set max_connections to {needed + reserved} or more and restart it, or PLAINSQL_CELL_MAX_CONNECTIONS to"
            f" {fitting}.",
        )  # fmt: skip
    else:
        yield good(check, f"It allows {allowed} connections; {needed} may be needed.")
    if facts.number("max_prepared_transactions") == 0:
        yield warning(
            check, "max_prepared_transactions is 0, so that no transaction can span databases.",
            "Set it to 64 and restart the cell.",
        )  # fmt: skip
    if facts.oldest_xid_age > _XID_AGE_WARNING:
        yield warning(
            check, f"Its oldest transaction id is {facts.oldest_xid_age:,} behind: vacuuming does not keep up.",
            "Look for old transactions with `plainsql-server status`, end them, and run `vacuumdb --all --freeze`.",
        )  # fmt: skip


def _durability(check: str, facts: CellFacts) -> Iterator[Finding]:
    for setting in ("fsync", "full_page_writes"):
        if facts.settings[setting] != "on":
            yield broken(check, f"{setting} is off: a power cut can destroy it.", f"Set {setting} = on, and reload it.")
    if facts.settings["default_transaction_isolation"] == "serializable":
        yield broken(
            check, "default_transaction_isolation is serializable for the whole server, which standbys refuse.",
            "Remove it: the service asks for it on its own connections.",
        )  # fmt: skip
    for slot, kept_bytes in facts.still_slots.items():
        grade = broken if kept_bytes > _SLOT_BYTES_WARNING else warning
        yield grade(
            check, f"Nobody reads the replication slot {slot}, which keeps {kept_bytes / 1e9:.1f} GB of log.",
            f"Start its standby, or run `SELECT pg_drop_replication_slot('{slot}')`.",
        )  # fmt: skip


async def _databases(check: str, directory: Directory, cell: CellRecord, facts: CellFacts) -> list[Finding]:
    known = await counts.engine_names(directory, cell.id)
    findings = []
    for name, state in known.items():
        if state in ("ready", "suspended") and name not in facts.customers:
            findings.append(broken(check, f"The database {name} is lost.", "Restore it: `plainsql-server restore`."))
        elif state == "ready" and not facts.customers[name]:
            mend = f"If no restore or move runs, run `ALTER DATABASE {name} ALLOW_CONNECTIONS true` on the cell."
            findings.append(broken(check, f"The database {name} lets nobody in: a restore or move broke off.", mend))
        elif state == "failed":
            mend = "Its customer can create it again, or delete it; the control plane's log says why it failed."
            findings.append(warning(check, f"The creation of the database {name} failed.", mend))
    unknown = sorted(set(facts.customers) - set(known))
    if unknown:
        mend = "They are of a newer directory than this, or of another: find out before you drop them."
        findings.append(warning(check, f"The directory does not know {', '.join(unknown[:5])}.", mend))
    return findings or [good(check, f"Its customers' databases are there: {len(known)}.")]


async def _probe(check: str, cell: CellRecord, facts: CellFacts) -> list[Finding]:
    if not facts.has_probe:
        return [broken(check, f"The role {PROBE_ROLE} is missing, which health checks log in as.", _AGAIN)]
    try:
        await check_cell(cell.conninfo)
    except ServiceError as error:
        why = " ".join((error.internal_context or error.message).split())
        return [broken(check, f"Customers' roles cannot log in: {why}", _mend(why))]
    return []


def _disk(check: str, cell: CellRecord, facts: CellFacts, free_percent: float) -> list[Finding]:
    host = str(conninfo_to_dict(cell.conninfo).get("host") or "/")
    # What another machine calls its data directory says nothing about a folder here.
    is_here = host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")
    found = disk(check, facts.settings["data_directory"], free_percent) if is_here else None
    return [found] if found else []
