"""Doctor's checks of a cell's size: whether its connections fit its memory, and its settings its many databases.

`files/sizing.py` computes the sizes that a cell should have. This module compares a running cell with them.
"""

from collections.abc import Iterator
from pathlib import Path

from plainsql_server.engine.admin.examining import CellFacts
from plainsql_server.operations.files.machine_memory import machine_memory_bytes
from plainsql_server.operations.files.sizing import GIB, locks_per_transaction, max_connections
from plainsql_server.operations.findings import Finding, warning

# With fewer entries in the lock table, one customer's transaction over some thousand tables can stop all others.
_FEWEST_LOCK_ENTRIES = 100_000
# From this number of databases on, the visits of autovacuum cost a noticeable part of a core.
_MANY_DATABASES = 500
_SHORTEST_NAPTIME_S = 300
_FILE_LIMIT = Path("/proc/sys/fs/file-max")


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
    if databases > _MANY_DATABASES and naptime_s < _SHORTEST_NAPTIME_S:
        yield warning(
            check, f"Autovacuum visits each of {databases} databases every {naptime_s} s, even if they are idle.",
            "Set autovacuum_naptime = 5min and reload PostgreSQL.",
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
