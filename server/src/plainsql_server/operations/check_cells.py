"""Doctor's checks of the cells: reachable, new enough, closed to the public, of the right size, and complete.

`engine/admin/examining.py` collects the facts about a cell, and `files/sizing.py` computes the sizes that it should
have. This module decides what is wrong and how to fix it.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from plainsql_server.core.errors import ServiceError
from plainsql_server.directory import cells as stored
from plainsql_server.directory import counts
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.restoring.workers import worker_ages_s
from plainsql_server.directory.sharing.processes import members
from plainsql_server.directory.upkeep.rehearsal_record import rehearsal_states
from plainsql_server.engine.admin.activity import view, watching
from plainsql_server.engine.admin.cell import DISK_FILE, TEMPLATE, TENANTS_ROLE
from plainsql_server.engine.admin.examining import CellFacts, examine
from plainsql_server.engine.admin.measures import CellMeasures, measure
from plainsql_server.engine.pool.health import PROBE_ROLE, check_cell
from plainsql_server.engine.pool.share import FIRST_CONNECTIONS, OTHER_CONNECTIONS, share_of
from plainsql_server.operations.check_certificates import cell_keys
from plainsql_server.operations.check_directory import clock, fix_for
from plainsql_server.operations.check_machine import disk, disk_of
from plainsql_server.operations.check_replicas import hidden, standbys
from plainsql_server.operations.files.machine_memory import machine_memory_bytes
from plainsql_server.operations.files.sizing import GIB, locks_per_transaction, max_connections, shortest_naptime_s
from plainsql_server.operations.findings import Finding, Target, broken, good, warning
from plainsql_server.operations.upkeep import cell_archive, cell_stream, cell_upkeep
from plainsql_server.settings import Settings

# Connections for operators, backups and provisioning, in addition to the data planes'.
_OTHERS = 16
_SLOT_BYTES_WARNING = 10_000_000_000
# With fewer entries in the lock table, one customer's transaction over some thousand tables can stop all others.
_FEWEST_LOCK_ENTRIES = 100_000
_FILE_LIMIT = Path("/proc/sys/fs/file-max")
_CONNINFO = "the cell's connection string, with `plainsql-server cell set --conninfo`"
# The service logs in to cells without passwords, so a password error means that pg_hba.conf is wrong.
_NO_PASSWORDS = "Remove password authentication from pg_hba.conf: `plainsql-server cell files` writes a suitable one."
_AGAIN = "Run `plainsql-server upgrade`, which prepares every cell again."


async def cells(target: Target) -> AsyncIterator[Finding]:
    """Check every cell."""
    async with Directory.open(target.settings.directory_dsn, max_connections=1) as directory:
        try:
            listed = await stored.list_(directory)
        except ServiceError as error:
            yield broken(
                "cells", "Cells can't be checked without the directory.", error.hint or "Fix the directory first."
            )
            return
        if not any(cell.state is CellState.ACTIVE for cell in listed):
            yield broken("cells", "No cell accepts new databases.", "Add one with `plainsql-server cell add`.")
        processes = await _processes(target, directory)
        for cell in listed:
            for finding in await _cell(target, directory, cell, processes):
                yield finding


async def _processes(target: Target, directory: Directory) -> int:
    """How many data plane processes divide the connections: those that run, or that this machine would start."""
    async with directory.connection() as connection:
        running = [member for member in await members(connection) if member.plane == "data"]
    return max(len(running), target.settings.workers)


async def _cell(target: Target, directory: Directory, cell: CellRecord, processes: int) -> list[Finding]:
    check = f"cell {cell.name}"
    try:
        async with watching(cell.conninfo, cell.admin_role) as connection:
            facts = await examine(connection)
            clocks = await clock(check, connection)
            seen = await view(connection)
            measures = await measure(connection)
    except ServiceError as error:
        why = " ".join((error.internal_context or error.message).split())
        return [broken(check, f"The cell cannot be reached as {cell.admin_role}: {why}", _fix(why))]
    findings = [clocks, *_fitness(check, facts), *_guard(check, facts)]
    findings += _capacity(check, facts, target.settings, processes)
    findings += [*size(check, facts), *_extensions(check, facts)]
    findings += [*standbys(check, cell.conninfo, seen), *hidden(check, cell.conninfo, facts)]
    findings += [*_durability(check, facts), *await _databases(check, directory, cell, facts)]
    findings += await _probe(check, cell, facts)
    findings += cell_keys(check, cell.conninfo, measures.certificate_pem)
    if target.settings.upkeep == "on":
        findings += cell_upkeep.certificates(check, cell.conninfo, measures)
        findings += await _archive(check, directory, cell, facts, measures)
        findings += cell_stream.stream(check, measures.stream)
        findings += cell_stream.receiver_login(check, facts.receiver)
        findings += await _workers(check, directory, cell)
        findings += cell_upkeep.transaction_ids(check, measures)
        if _is_here(cell):
            findings += cell_upkeep.machine(check, facts.settings["data_directory"])
    if _is_here(cell):
        findings += machine_size(check, facts)
    findings += _disk(check, cell, measures, target.disk_free_percent)
    return findings


def _disk(check: str, cell: CellRecord, measures: CellMeasures, free_percent: float) -> Iterator[Finding]:
    if measures.disk is not None:
        yield disk(check, measures.data_directory, measures.disk, free_percent)
        return
    if _is_here(cell) and (found := disk_of(check, measures.data_directory, free_percent)) is not None:
        yield found
    yield warning(
        check, "What is free on its disk is not known to the control plane, so no branches can be made.",
        "Start `plainsql-server cell guard` on its machine, or read its log: `cell files` writes a unit that lets it"
        f" write the file {DISK_FILE}. A cell with CloudNativePG has no guard, and makes no branches.",
    )  # fmt: skip


async def _archive(
    check: str, directory: Directory, cell: CellRecord, facts: CellFacts, measures: CellMeasures
) -> list[Finding]:
    findings = [*cell_archive.archiving(check, facts.settings, measures)]
    command = facts.settings["archive_command"]
    findings += await cell_archive.archive_backups(check, cell, command, measures, is_here=_is_here(cell))
    try:
        states = await rehearsal_states(directory)
    except ServiceError:
        # The directory is not migrated yet, which is a finding of its own.
        return findings
    return [*findings, *cell_archive.rehearsals(check, measures, states.get(cell.id))]


async def _workers(check: str, directory: Directory, cell: CellRecord) -> list[Finding]:
    try:
        ages_s = await worker_ages_s(directory)
    except ServiceError:
        # As above.
        return []
    return list(cell_archive.restore_workers(check, ages_s.get(cell.id)))


def _fix(why: str) -> str:
    return _NO_PASSWORDS if "password" in why else fix_for(why, _CONNINFO)


def _fitness(check: str, facts: CellFacts) -> Iterator[Finding]:
    if facts.version_floor is None:
        yield broken(
            check, f"PostgreSQL {facts.version_text} has not been tested as a cell.", "Use a tested release: 15 to 18."
        )
    elif facts.is_too_old:
        yield broken(
            check,
            f"PostgreSQL {facts.version_text} has known vulnerabilities; {facts.version_floor} is the oldest allowed.",
            "Install the newest minor release. It takes a restart but no dump.",
        )  # fmt: skip
    else:
        yield good(check, f"PostgreSQL {facts.version_text} is new enough.")
    if not facts.is_superuser:
        yield broken(check, "The admin role is not a superuser.", "Run `ALTER ROLE … SUPERUSER` on the cell.")
    template = facts.template
    if template is None:
        yield broken(check, f"The template database {TEMPLATE} is missing, so no database can be created.", _AGAIN)
    elif template.is_open or not template.is_template or template.encoding != "UTF8" or not template.is_ours:
        yield broken(
            check,
            f"The template database {TEMPLATE} was changed. It must be a template, refuse connections, use UTF8 and"
            " belong to the admin role.",
            _AGAIN,
        )  # fmt: skip


def _guard(check: str, facts: CellFacts) -> Iterator[Finding]:
    if facts.open_to_all:
        yield broken(check, f"PUBLIC may connect to {', '.join(facts.open_to_all)}, so every customer can.", _AGAIN)
    for rule in facts.open_network:
        yield broken(
            check, f"pg_hba.conf trusts every network client ({rule}).",
            "Require a certificate (`cert`) or a password, and reload PostgreSQL.",
        )  # fmt: skip
    for admission in facts.admitted:
        yield broken(
            check,
            f"pg_hba.conf admits {', '.join(admission.roles)} on trust (line {admission.line}: {admission.rule}), with"
            " privileges that no customer has.",
            f"Admit +{TENANTS_ROLE} instead, as `plainsql-server cell files` does, and reload PostgreSQL; or take LOGIN"
            " from these roles.",
        )
    if facts.ungrouped:
        yield broken(
            check, f"{len(facts.ungrouped)} roles of customers are not in the group {TENANTS_ROLE}.", _AGAIN
        )  # fmt: skip
    if facts.settings["log_statement"] != "none" or facts.settings["log_min_error_statement"] not in ("fatal", "panic"):
        yield warning(
            check, "Customers' SQL is written to the cell's log.",
            "Set log_statement = none and log_min_error_statement = panic.",
        )  # fmt: skip


def _connections(check: str, facts: CellFacts, settings: Settings, processes: int) -> Iterator[Finding]:
    reserved = facts.number("superuser_reserved_connections")
    allowed = facts.number("max_connections") - reserved
    if settings.cell_max_connections is None:
        share = share_of(allowed + reserved, processes)
        if share >= FIRST_CONNECTIONS:
            yield good(check, f"It allows {allowed} connections; each of {processes} processes may have {share}.")
        else:
            yield warning(
                check, f"It allows {allowed} connections, so each of {processes} processes may have only {share}.",
                f"Set max_connections to {FIRST_CONNECTIONS * processes + OTHER_CONNECTIONS} or more and restart"
                " PostgreSQL: `plainsql-server cell files` computes it from the cell's memory.",
            )  # fmt: skip
        return
    needed = processes * settings.cell_max_connections + _OTHERS
    if allowed < needed:
        fitting = max(1, (allowed - _OTHERS) // processes)
        yield broken(
            check, f"It allows {allowed} connections; {processes} data plane processes may need {needed}.",
            f"Set max_connections to {needed + reserved} or more and restart PostgreSQL, or set"
            f" PLAINSQL_CELL_MAX_CONNECTIONS to {fitting}.",
        )  # fmt: skip
    else:
        yield good(check, f"It allows {allowed} connections; up to {needed} may be needed.")


def _capacity(check: str, facts: CellFacts, settings: Settings, processes: int) -> Iterator[Finding]:
    yield from _connections(check, facts, settings, processes)
    if facts.number("max_prepared_transactions") == 0:
        yield warning(
            check, "max_prepared_transactions is 0, so transactions can't span databases.",
            "Set it to 64 and restart the cell.",
        )  # fmt: skip


def size(check: str, facts: CellFacts) -> Iterator[Finding]:
    """Check the settings that have to fit each other."""
    connections, prepared = facts.number("max_connections"), facts.number("max_prepared_transactions")
    entries = facts.number("max_locks_per_transaction") * (connections + prepared)
    if entries < _FEWEST_LOCK_ENTRIES:
        yield warning(
            check, f"Its lock table has {entries:,} entries, which a single transaction over many tables can fill.",
            f"Set max_locks_per_transaction to {locks_per_transaction(connections, prepared)} and restart the cell.",
        )  # fmt: skip
    databases, naptime_s = len(facts.customers), facts.number("autovacuum_naptime")
    if naptime_s < (shortest_s := shortest_naptime_s(databases)):
        yield warning(
            check, f"Autovacuum visits each of {databases} databases every {naptime_s} s, even if they are idle.",
            f"Set autovacuum_naptime = {shortest_s // 60}min and reload PostgreSQL.",
        )  # fmt: skip


def _extensions(check: str, facts: CellFacts) -> Iterator[Finding]:
    offered = ", ".join(each.name for each in facts.extensions if each.is_offered)
    yield good(check, f"Customers can create these extensions: {offered or 'none'}.")
    untrusted = [each.name for each in facts.extensions if each.version and not each.is_trusted]
    if untrusted:
        yield warning(
            check, f"Customers can't create {', '.join(untrusted)}: allowed and installed, but not trusted.",
            "Trust the installed version, as docs/operating.md describes under Extensions, or remove it from the list"
            " with `plainsql-server cell extensions`.",
        )  # fmt: skip
    for each in facts.extensions:
        if each.is_offered and each.floor:
            yield warning(
                check, f"{each.name} {each.version} has known vulnerabilities, which {each.floor} fixes.",
                f"Install {each.floor} or newer, or run `plainsql-server cell extensions` with --refuse {each.name}.",
            )  # fmt: skip


def machine_size(check: str, facts: CellFacts) -> Iterator[Finding]:
    """Check that a cell on this machine fits it."""
    yield from _memory(check, facts, machine_memory_bytes())
    if _FILE_LIMIT.exists():
        yield from _open_files(check, facts, int(_FILE_LIMIT.read_text()))


def _memory(check: str, facts: CellFacts, memory_bytes: int) -> Iterator[Finding]:
    allowed, fitting = facts.number("max_connections"), max_connections(memory_bytes)
    if allowed > fitting:
        yield warning(
            check,
            f"It allows {allowed} connections; the {memory_bytes / GIB:.4g} GiB of this machine are enough for"
            f" {fitting}.",
            f"Set max_connections to {fitting} and restart PostgreSQL, or add memory.",
        )


def _open_files(check: str, facts: CellFacts, limit: int) -> Iterator[Finding]:
    needed = facts.number("max_connections") * facts.number("max_files_per_process")
    if limit < needed:
        yield warning(
            check, f"Its connections may open {needed:,} files; this machine allows {limit:,}.",
            f"Run `sysctl -w fs.file-max={needed}`, and put it into /etc/sysctl.d.",
        )  # fmt: skip


def _durability(check: str, facts: CellFacts) -> Iterator[Finding]:
    for setting in ("fsync", "full_page_writes"):
        if facts.settings[setting] != "on":
            yield broken(
                check,
                f"{setting} is off: a power failure can destroy the cell.",
                f"Set {setting} = on and reload PostgreSQL.",
            )
    if facts.settings["default_transaction_isolation"] == "serializable":
        yield broken(
            check, "default_transaction_isolation is serializable for the whole server, which standbys don't support.",
            "Remove it. The service sets it on its own connections.",
        )  # fmt: skip
    for slot, kept_bytes in facts.still_slots.items():
        grade = broken if kept_bytes > _SLOT_BYTES_WARNING else warning
        yield grade(
            check, f"The replication slot {slot} has no reader and retains {kept_bytes / 1e9:.1f} GB of WAL.",
            f"Start its standby, or run `SELECT pg_drop_replication_slot('{slot}')`.",
        )  # fmt: skip


async def _databases(check: str, directory: Directory, cell: CellRecord, facts: CellFacts) -> list[Finding]:
    known = await counts.engine_names(directory, cell.id)
    findings = []
    for name, state in known.items():
        if state in ("ready", "suspended") and name not in facts.customers:
            findings.append(
                broken(check, f"The database {name} is missing.", "Restore it with `plainsql-server restore`.")
            )
        elif state == "ready" and not facts.customers[name]:
            fix = f"If no restore or move is running, run `ALTER DATABASE {name} ALLOW_CONNECTIONS true` on the cell."
            found = f"The database {name} refuses all connections: a restore or move was interrupted."
            findings.append(broken(check, found, fix))
        elif state == "failed":
            fix = "Its customer can create it again or delete it. The control plane's log has the reason."
            findings.append(warning(check, f"Creating the database {name} failed.", fix))
    unknown = sorted(set(facts.customers) - set(known))
    if unknown:
        fix = (
            "They belong to another directory, or were created after the backup that this directory was restored from."
            " Find out which before you drop them, or adopt them with `plainsql-server database adopt`."
        )
        findings.append(warning(check, f"The directory has no record of {', '.join(unknown[:5])}.", fix))
    return findings or [good(check, f"All customer databases are present: {len(known)}.")]


async def _probe(check: str, cell: CellRecord, facts: CellFacts) -> list[Finding]:
    if not facts.has_probe:
        return [broken(check, f"The role {PROBE_ROLE} is missing. Health checks log in as it.", _AGAIN)]
    try:
        await check_cell(cell.conninfo)
    except ServiceError as error:
        why = " ".join((error.internal_context or error.message).split())
        return [broken(check, f"Customers' roles can't log in: {why}", _fix(why))]
    return []


def _is_here(cell: CellRecord) -> bool:
    """Whether this machine's disk and memory are the cell's."""
    host = str(conninfo_to_dict(cell.conninfo).get("host") or "/")
    return host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")
