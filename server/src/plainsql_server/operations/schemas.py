"""The definitions of a dumped database: brought into another one, by pg_restore and as its owner.

Owns which of them go when: indexes and constraints after the rows, rights last.
"""

import re
from pathlib import Path

from plainsql_server.core.errors import RequestError
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.programs import run
from plainsql_server.operations.progress import Progress

# Rights come from the archive in a step of their own; owners are whoever restores.
OPTIONS = ("--exit-on-error", "--no-owner", "--no-privileges")
# The engine's own functions have theirs from provisioning.
_RIGHTS = re.compile(rb"\d+; \d+ \d+ (DEFAULT )?ACL (?!pg_catalog )")
_ENTRY = re.compile(rb"\d+; ")
_EVENT_TRIGGER = re.compile(rb"\d+; \d+ \d+ EVENT TRIGGER ")
_CREATED = re.compile(r"pg_restore: (creating|executing) ")
_ROLE = re.compile(r"[or]_[0-9a-f]{24}\Z")


def renamed(archive: bytes, roles: tuple[str, str], made: DatabaseRecord) -> bytes:
    """The archive of definitions with the roles of another database, owner and reader, in the place of its own."""
    # Role names are random and of one length, so that the archive, which counts the bytes of each text, stays one. It
    # holds definitions and no rows: whatever names a role there means it.
    for old, new in zip(roles, (made.owner_role, made.reader_role), strict=True):
        if not _ROLE.match(old) or len(old) != len(new):
            raise RequestError("backup_damaged", f"The backup names a role that is none of ours: {old!r}.")
        archive = archive.replace(old.encode(), new.encode())
    return archive


async def finish_schema(program: Path, schema: Path, conninfo: str, progress: Progress) -> None:
    """Indexes, constraints, triggers, and what else comes after the rows."""
    options = ("--section=post-data", "--no-privileges")
    listed = await run(program, (*options, "--list", str(schema)), None)
    # The new database has the service's own event trigger already, and tenants can have none.
    wanted = [line for line in listed.splitlines() if not _EVENT_TRIGGER.match(line)]
    chosen = schema.with_name("post-data")
    chosen.write_bytes(b"\n".join(wanted) + b"\n")
    entries = sum(1 for line in wanted if _ENTRY.match(line))
    progress.step("indexes", max(1, entries), in_bytes=False)
    done = -1

    def hear(line: str) -> None:
        nonlocal done
        if _CREATED.match(line):
            # It says so before it does so.
            done += 1
            progress.at(done)

    chosen_only = ("--section=post-data", f"--use-list={chosen}")
    await run(program, (*OPTIONS, *chosen_only, "--verbose", str(schema)), conninfo, hear)


async def grant(program: Path, schema: Path, conninfo: str) -> None:
    """Rights come last: an owner may have taken some from itself, which filling the tables needs."""
    listed = await run(program, ("--list", str(schema)), None)
    rights = [line for line in listed.splitlines() if _RIGHTS.match(line)]
    if rights:
        chosen = schema.with_name("rights")
        chosen.write_bytes(b"\n".join(rights) + b"\n")
        await run(program, ("--exit-on-error", "--no-owner", f"--use-list={chosen}", str(schema)), conninfo)
