"""`plainsql-server cell guard`: lets customers who take little of a cell's processors go first."""

import signal
from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.operations.priorities import Priorities, can_see, may_bring_back

_ENDS = (signal.SIGTERM, signal.SIGINT)


@click.command("guard")
@click.argument("data_folder", type=click.Path(file_okay=False, path_type=Path))
def guard_command(data_folder: Path) -> None:
    """Let customers who take little processor time go first, on the machine where a cell's PostgreSQL runs.

    DATA_FOLDER is PostgreSQL's. Run this as its user, with the capability CAP_SYS_NICE, for as long as the machine
    runs: `cell files` writes a systemd unit that does. Needs Linux, no settings, and no connection to anything.
    """
    if not can_see():
        raise click.ClickException("This needs Linux, with /proc mounted, CONFIG_PROC_CHILDREN and CONFIG_SCHED_INFO.")
    if not may_bring_back():
        remark("Without CAP_SYS_NICE, connections that are put behind stay there until they are closed.")
    # Blocked and asked for between two looks, so that none is torn.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    remark(f"Watching the backends of {data_folder}; Ctrl-C ends it.")
    Priorities(data_folder, remark).run(lambda seconds: signal.sigtimedwait(_ENDS, seconds) is not None)
    remark("Ended.")
