"""`plainsql-server directory …`."""

import click

from plainsql_server.cli.directory.files import files_command
from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.running import with_directory
from plainsql_server.directory.connection import Directory
from plainsql_server.operations.point_in_time.reconcile import (
    PreparedOnCells,
    TransactionEnding,
    find_prepared,
    postpone_unfinished,
)

_COLUMNS = ["gid", "cell", "database", "parts", "ending"]


@click.group("directory")
def directory_command() -> None:
    """Archive the directory, and bring it and the cells to agree after a restore."""


directory_command.add_command(files_command)


@directory_command.command("reconcile")
@json_option
@click.pass_context
def _reconcile(ctx: click.Context, *, as_json: bool) -> None:
    """Run this once after the directory was restored from its archive, before the planes start.

    Creations, deletions and moves that are unfinished in it have ended since. The planes don't take them up for 7 days.
    Restores that customers had asked for are given up.

    Lists the parts of transactions over several databases that are prepared on cells, and how the control plane will
    end them: commit or rollback. If it is `uncertain`, the directory does not have the decision, and another part of
    the transaction may have been committed. The exit code is 1 if there is one, or if a cell does not respond.
    """

    async def reconcile(directory: Directory) -> tuple[int, PreparedOnCells]:
        return await postpone_unfinished(directory), await find_prepared(directory)

    unfinished, prepared = with_directory(reconcile)
    remark(f"Unfinished creations, deletions and moves, which wait for 7 days: {unfinished}.")
    print_records(prepared.parts, _COLUMNS, as_json=as_json)
    for cell in prepared.unreachable:
        remark(f"The cell {cell!r} does not respond. Run this again when it does.")
    uncertain = {part.gid for part in prepared.parts if part.ending is TransactionEnding.UNCERTAIN}
    if uncertain:
        remark(f"Decide before you start the planes, as docs/backups.md describes: {', '.join(sorted(uncertain))}.")
    if uncertain or prepared.unreachable:
        ctx.exit(1)
