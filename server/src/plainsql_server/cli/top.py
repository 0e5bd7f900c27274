"""`plainsql-server top`."""

import shutil
import sys
import time

import click
import msgspec

from plainsql_server.cli.output import json_option, remark, table_lines
from plainsql_server.cli.running import with_directory
from plainsql_server.dev.signals import Signals
from plainsql_server.operations.top import Picture, RunningStatement, cancel, look

_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_COLUMNS = ["cell", "pid", "organization", "database", "role", "state", "seconds", "waits for", "sql"]


@click.command("top")
@click.option("--once", is_flag=True, help="Print once and exit; the default if stdout is not a terminal.")
@click.option("--every", "every_s", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, metavar="SECONDS",
              help="How often to redraw the screen.")  # fmt: skip
@click.option("--idle", is_flag=True, help="Also show idle connections.")
@click.option("--cancel", "pid", type=click.IntRange(1), metavar="PID", help="Cancel this backend's statement.")
@click.option("--terminate", is_flag=True, help="With --cancel: also terminate the connection.")
@click.option("--cell", metavar="NAME", help="With --cancel: the cell, if several have that PID.")
@json_option
def top_command(
    *, once: bool, every_s: float, idle: bool, pid: int | None, terminate: bool, cell: str | None, as_json: bool
) -> None:
    """Show the statements that customers' requests are running, longest first, until Ctrl-C.

    SQL is truncated. Parameter values are never shown, but literals in the SQL are.
    """
    if pid is None and (terminate or cell):
        raise click.UsageError("--terminate and --cell need --cancel.")
    if pid is not None:
        ended = with_directory(lambda directory: cancel(directory, pid, cell, terminate=terminate), reads="cancel")
        remark(
            f"{'Ended' if terminate else 'Cancelled'} {ended.pid} on {ended.cell}: {ended.organization}, {ended.sql}"
        )
    elif as_json:
        picture = with_directory(lambda directory: look(directory, idle=idle), reads="top")
        click.echo(msgspec.json.format(msgspec.json.encode(picture), indent=2))
    elif once or not sys.stdout.isatty():
        click.echo("\n".join(_lines(with_directory(lambda directory: look(directory, idle=idle), reads="top"), None)))
    else:
        _watch(every_s, idle)


def _watch(every_s: float, idle: bool) -> None:
    click.clear()
    # Ctrl-C is the normal way to quit, even if the shell made its children ignore it.
    with Signals() as signals:
        reads: str | None = "top"
        while not signals.stop_asked:
            _draw(with_directory(lambda directory: look(directory, idle=idle), reads=reads))
            # One entry is enough for all that follows.
            reads = None
            signals.wait(every_s)


def _draw(picture: Picture) -> None:
    width, height = shutil.get_terminal_size()
    lines = [f"{time.strftime('%H:%M:%S')}  {len(picture.statements)} statements  Ctrl-C quits", ""]
    lines += _lines(picture, width)
    drawn = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines[: height - 1])
    click.echo(f"{_HOME}{drawn}{_CLEAR_BELOW}", nl=False)


def _lines(picture: Picture, width: int | None) -> list[str]:
    rows = [_row(statement) for statement in picture.statements]
    lines = table_lines(_COLUMNS, rows)
    lines += [f"The cell {name} does not respond: {why}" for name, why in picture.unreachable.items()]
    return [line[:width] for line in lines]


def _row(statement: RunningStatement) -> list[str]:
    return [
        statement.cell, str(statement.pid), statement.organization, statement.database, statement.role, statement.state,
        f"{statement.elapsed_s:.1f}", statement.waits_for or "-", statement.sql,
    ]  # fmt: skip
