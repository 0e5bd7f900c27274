"""`plainsql-server cell guard`: lets customers who take little of a cell's processors go first."""

import os
from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.operations.priorities import Priorities, children_file, may_bring_back


@click.command("guard")
@click.argument("data_folder", type=click.Path(file_okay=False, path_type=Path))
def guard_command(data_folder: Path) -> None:
    """Let customers who take little processor time go first, on the machine where a cell's PostgreSQL runs.

    DATA_FOLDER is PostgreSQL's. Run this as its user, with the capability CAP_SYS_NICE, for as long as the machine
    runs: `cell files` writes a systemd unit that does. Needs Linux, no settings, and no connection to anything.
    """
    if not children_file(os.getpid()).exists():
        raise click.ClickException("This needs Linux, with /proc mounted and CONFIG_PROC_CHILDREN.")
    if not may_bring_back():
        remark("Without CAP_SYS_NICE, connections that are put behind stay there until they are closed.")
    remark(f"Watching the backends of {data_folder}; Ctrl-C ends it.")
    try:
        Priorities(data_folder, remark).run()
    except KeyboardInterrupt:
        remark("Ended. Connections that are behind stay so until they are closed or a guard is started again.")
