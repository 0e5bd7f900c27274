"""`plainsql-server wal …`: the WAL that another machine received from a cell."""

import asyncio
from pathlib import Path

import click
from psycopg.conninfo import make_conninfo

from plainsql_server.cli.output import remark
from plainsql_server.cli.point_in_time import archive_option
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.operations.point_in_time.child_process import asked_locally
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.received import (
    archive_placed,
    check_reached,
    parsed_position,
    place_received,
    prune_received,
    received_end,
)

_REPLAYED = "SELECT pg_last_wal_replay_lsn(), pg_last_xact_replay_timestamp() WHERE NOT pg_is_in_recovery()"
_received = click.argument("received", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group("wal")
def wal_command() -> None:
    """Restore and prune the WAL that pg_receivewal has stored in the folder RECEIVED: docs/backups.md."""


@wal_command.command("place")
@_received
@archive_option(required=True)
@click.option("--data-folder", default="/var/lib/postgresql/15/main", show_default=True,
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="PostgreSQL's data folder, as pgBackRest has restored it.")  # fmt: skip
def place_command(received: Path, archive: Path, data_folder: Path) -> None:
    """Put what was received and is not in the archive within reach of a cluster that will replay the archive.

    Complete files are also archived. Exit code 0 even if that fails: they will be replayed in any case.
    """
    if (data_folder / "postmaster.pid").exists() or not (data_folder / "recovery.signal").exists():
        raise click.ClickException(f"{data_folder} is not what pgBackRest restores, or was started. Restore it first.")
    asyncio.run(_place(received, Archive(archive.resolve()), data_folder))


async def _place(received: Path, archive: Archive, data: Path) -> None:
    files = await place_received(received, archive, data / "pg_wal")
    complete = [file.name for file in files if file.is_complete]
    failed = await archive_placed(complete, archive, data)
    remark(f"Files that the archive did not have: {len(files)}. Archived of them: {len(complete) - len(failed)}.")
    if failed:
        remark(
            f"Not archived, from {failed[0]} to {failed[-1]}: {len(failed)}. They will be replayed. Keep {received} for"
            " as long as you may want to restore a moment before the loss."
        )


@wal_command.command("check")
@_received
@click.option("--admin-role", required=True, metavar="ROLE", help="Superuser of the cluster.")
@click.option("--socket-directory", default="/run/postgresql", show_default=True, help="Folder of its local socket.")
@click.option("--port", type=click.IntRange(1, 65535), default=5432, show_default=True, help="Port of the cluster.")
def check_command(received: Path, admin_role: str, socket_directory: str, port: int) -> None:
    """Check that a restored cluster has replayed all that was received, up to its last record.

    Exit code 1: it has not. Then it was opened too early, and lacks transactions that were acknowledged.
    """
    dsn = make_conninfo(host=socket_directory, port=port, user=admin_role, dbname=MAINTENANCE_DATABASE)
    end = asyncio.run(received_end(received))
    if end is None:
        raise click.ClickException(f"Nothing was received in {received}.")
    position, _, committed_at = asyncio.run(asked_locally(_REPLAYED, dsn)).partition("|")
    if not position:
        raise click.ClickException("This cluster was not restored, or has been restarted since.")
    check_reached(end, parsed_position(position))
    remark(
        f"All that was received until {end.at:%Y-%m-%d %H:%M:%S.%f} UTC is there. The last commit is of"
        f" {committed_at or 'an earlier time'}. What the cell acknowledged after that is lost."
    )


@wal_command.command("prune")
@_received
@archive_option(required=True)
def prune_command(received: Path, archive: Path) -> None:
    """Delete received files that the archive has. Meant for a timer on the machine that receives them."""
    names = asyncio.run(prune_received(received, Archive(archive.resolve())))
    remark(f"Deleted files that the archive has: {len(names)}.")
