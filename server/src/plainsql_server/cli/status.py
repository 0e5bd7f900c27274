"""`plainsql-server status`."""

from pathlib import Path

import click
import msgspec

from plainsql_server.cli.output import json_option, print_table
from plainsql_server.cli.progress import size
from plainsql_server.cli.running import with_directory
from plainsql_server.operations.status import CellStatus, Status, gather
from plainsql_server.settings import read_settings

ca_file_option = click.option(
    "--ca-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), envvar="PLAINSQL_CA_FILE",
    show_envvar=True, help="Also trust this CA for the planes' URLs.",
)  # fmt: skip
_CELLS = [
    "cell", "state", "version", "databases", "connections", "running", "lock waits", "oldest transaction", "size",
]  # fmt: skip


@click.command("status")
@ca_file_option
@json_option
def status_command(ca_file: Path | None, as_json: bool) -> None:
    """Show the state of cells, databases, connections, queues, replication and planes.

    Exit code 0 means that the directory responded, even if other parts did not. To find problems, run
    `plainsql-server doctor`.
    """
    settings = read_settings()
    status = with_directory(lambda directory: gather(directory, settings, ca_file))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(status), indent=2))
    else:
        _print(status)


def _print(status: Status) -> None:
    known = status.directory
    click.echo("Directory: " + ", ".join(f"{name} {count}" for name, count in known.items()) + "\n")
    print_table(_CELLS, [_cell(cell) for cell in status.cells])
    for cell in status.cells:
        if cell.problem:
            click.echo(f"The cell {cell.name} does not respond: {cell.problem}")
    _print_replicas(status)
    if status.planes:
        click.echo()
        rows = [
            [
                plane.name,
                plane.url,
                plane.status,
                plane.version or "-",
                _duration(plane.uptime_s),
                _checks(plane.checks),
            ]
            for plane in status.planes
        ]
        print_table(["plane", "url", "status", "version", "uptime", "checks"], rows)
    if status.processes:
        click.echo()
        columns = ["port", "open_connections", "running", "waiting", "streams"]
        rows = [[str(getattr(process, column)) for column in columns] for process in status.processes]
        print_table(["metrics port", *columns[1:]], rows)


def _print_replicas(status: Status) -> None:
    rows = []
    for cell in status.cells:
        if cell.view and cell.view.replicas:
            rows.append([cell.name, cell.view.server, "leader", "-", "-"])
            rows += [
                [cell.name, each.name, each.state, each.sync_state,
                 "-" if each.behind_bytes is None else size(each.behind_bytes)]
                for each in cell.view.replicas
            ]  # fmt: skip
    if rows:
        click.echo()
        print_table(["cell", "server", "state", "sync", "behind"], rows)


def _cell(cell: CellStatus) -> list[str]:
    databases = ", ".join(f"{count} {state}" for state, count in cell.databases.items()) or "none"
    if cell.view is None:
        return [cell.name, cell.state, "unreachable", databases, "-", "-", "-", "-", "-"]
    view = cell.view
    return [
        cell.name, f"{cell.state}{', standby' if view.is_standby else ''}", view.version.split()[0], databases,
        f"{view.connections} of {view.max_connections}", str(view.running), str(view.waiting_for_locks),
        f"{view.oldest_transaction_s:.1f} s", "-" if view.size_bytes is None else size(view.size_bytes),
    ]  # fmt: skip


def _checks(checks: dict[str, str]) -> str:
    return ", ".join(f"{name} {state}" for name, state in checks.items()) or "-"


def _duration(seconds: int | None) -> str:
    if seconds is None:
        return "-"
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
