"""`plainsql-server cell guard`: give customers who use little CPU time priority, and measure the cell's disk."""

import signal
import threading
from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.operations.priorities import Priorities, can_see, may_bring_back
from plainsql_server.operations.upkeep.disk_figure import DiskFigure

_ENDS = (signal.SIGTERM, signal.SIGINT)


@click.command("guard")
@click.argument("data_folder", type=click.Path(file_okay=False, path_type=Path))
def guard_command(data_folder: Path) -> None:
    """Give priority to customers who use little CPU time, and measure the cell's disk. Run it on a cell's machine.

    What is free on the disk is written to the file plainsql_disk in DATA_FOLDER every ten seconds. Branches need it:
    the control plane reads it, unless it reaches the cell by a Unix socket.

    DATA_FOLDER is PostgreSQL's data folder. Run this as PostgreSQL's user, with the capability CAP_SYS_NICE, for as
    long as the machine runs: `cell files` writes a systemd unit for it. It needs Linux, but no settings and no
    connection to anything.
    """
    if not can_see():
        raise click.ClickException("This needs Linux with /proc mounted, CONFIG_PROC_CHILDREN and CONFIG_SCHED_INFO.")
    if not may_bring_back():
        remark("Without CAP_SYS_NICE, a connection whose priority is lowered keeps it until it closes.")
    # Signals are blocked and polled between two rounds, so a round is never interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    remark(f"Watching the backends of {data_folder}. Ctrl-C quits.")
    # A disk that hangs must not hold the priorities up.
    ended = threading.Event()
    threading.Thread(target=DiskFigure(data_folder, remark).run, args=(ended,), daemon=True).start()
    Priorities(data_folder, remark).run(lambda seconds: signal.sigtimedwait(_ENDS, seconds) is not None)
    ended.set()
    remark("Stopped.")
