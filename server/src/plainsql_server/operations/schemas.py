"""Restores the schema of a dumped database, with pg_restore as the new database's owner.

Indexes and constraints come after the rows, privileges last.
"""

import re
from pathlib import Path

from plainsql_server.core.errors import RequestError
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin.provisioning import backup_role_of
from plainsql_server.operations.programs import run
from plainsql_server.operations.progress import Progress

# Privileges are restored in a separate step. Objects belong to the role that restores them.
OPTIONS = ("--exit-on-error", "--no-owner", "--no-privileges")
# Privileges on pg_catalog are set by provisioning.
_RIGHTS = re.compile(rb"\d+; \d+ \d+ (DEFAULT )?ACL (?!pg_catalog )")
_ENTRY = re.compile(rb"\d+; ")
_EVENT_TRIGGER = re.compile(rb"\d+; \d+ \d+ EVENT TRIGGER ")
_CREATED = re.compile(r"pg_restore: (creating|executing) ")
_ROLE = re.compile(r"[or]_[0-9a-f]{24}\Z")


def renamed(archive: bytes, roles: tuple[str, str], made: DatabaseRecord) -> bytes:
    """Replace the owner and reader roles in a schema archive with those of another database."""
    # Role names are random and have equal length, so the archive, which stores the length of each text, stays valid. It
    # contains no rows, so every occurrence of a role name is that role.
    for old, new in zip(roles, (made.owner_role, made.reader_role), strict=True):
        if not _ROLE.match(old) or len(old) != len(new):
            raise RequestError("backup_damaged", f"The backup contains an unknown role: {old!r}.")
        archive = archive.replace(old.encode(), new.encode())
    # A customer can see the role that backups log in as, and grant it something. No restore needs that.
    return archive.replace(backup_role_of(roles[0]).encode(), made.owner_role.encode())


async def finish_schema(program: Path, schema: Path, conninfo: str, progress: Progress) -> None:
    """Restore indexes, constraints, triggers and everything else that comes after the rows."""
    options = ("--section=post-data", "--no-privileges")
    listed = await run(program, (*options, "--list", str(schema)), None)
    # The new database already has the service's event trigger, and tenants can't create any.
    wanted = [line for line in listed.splitlines() if not _EVENT_TRIGGER.match(line)]
    chosen = schema.with_name("post-data")
    chosen.write_bytes(b"\n".join(wanted) + b"\n")
    entries = sum(1 for line in wanted if _ENTRY.match(line))
    progress.step("indexes", max(1, entries), in_bytes=False)
    done = -1

    def hear(line: str) -> None:
        nonlocal done
        if _CREATED.match(line):
            # pg_restore prints the line before it does the work.
            done += 1
            progress.at(done)

    # Materialized views are filled last, when row security is enabled. Where it is forced, they get what the policies
    # let the owner see, as by its own REFRESH. Without this option, pg_restore refuses that.
    chosen_only = ("--section=post-data", f"--use-list={chosen}", "--enable-row-security")
    await run(program, (*OPTIONS, *chosen_only, "--verbose", str(schema)), conninfo, hear)


async def grant(program: Path, schema: Path, conninfo: str, made: DatabaseRecord) -> None:
    """Restore privileges, last: an owner may have revoked some from itself that loading the rows needs.

    Only the owner's objects have any to restore. What the service revokes on an extension's functions, which belong to
    a superuser, was revoked when the extension was created.
    """
    listed = await run(program, ("--list", str(schema)), None)
    owner = b" " + made.owner_role.encode()
    rights = [line for line in listed.splitlines() if _RIGHTS.match(line) and line.endswith(owner)]
    if rights:
        chosen = schema.with_name("rights")
        chosen.write_bytes(b"\n".join(rights) + b"\n")
        await run(program, ("--exit-on-error", "--no-owner", f"--use-list={chosen}", str(schema)), conninfo)
