"""`plainsql-server wal …`: the WAL that another machine received from a cell."""

import asyncio
from pathlib import Path

import click
from psycopg.conninfo import make_conninfo

from plainsql_server.cli.output import remark
from plainsql_server.cli.point_in_time import archive_option
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.operations.point_in_time.free_space import check_space_for_received
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.received import archive_received, place_received, prune_received
from plainsql_server.operations.point_in_time.replay_end import check_replayed, replay_of

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

    Nothing is archived: `wal check` does that, when it is certain that no file is missing in between.
    """
    if (data_folder / "postmaster.pid").exists() or not (data_folder / "recovery.signal").exists():
        raise click.ClickException(f"{data_folder} is not what pgBackRest restores, or was started. Restore it first.")
    asyncio.run(_place(received, Archive(archive.resolve()), data_folder))


async def _place(received: Path, archive: Archive, data: Path) -> None:
    def check_room(size_bytes: int) -> None:
        # The disk is the new cell's own, and no other cell's.
        check_space_for_received(data, size_bytes, None, hint="Make room there, or restore the cell to a larger disk.")

    files = await place_received(received, archive, data / "pg_wal", check_room)
    remark(f"Files that the archive does not have: {len(files)}. They will be replayed.")


@wal_command.command("check")
@_received
@archive_option(required=True)
@click.option("--admin-role", required=True, metavar="ROLE", help="Superuser of the cluster.")
@click.option("--socket-directory", default="/run/postgresql", show_default=True, help="Folder of its local socket.")
@click.option("--port", type=click.IntRange(1, 65535), default=5432, show_default=True, help="Port of the cluster.")
def check_command(received: Path, archive: Path, admin_role: str, socket_directory: str, port: int) -> None:
    """Check that a restored cluster has replayed all that the archive and RECEIVED have, up to the last record.

    If so, received files that the archive lacks are archived. Exit code 1: the cluster was opened too early, and lacks
    transactions that were acknowledged. Then nothing is archived.
    """
    dsn = make_conninfo(host=socket_directory, port=port, user=admin_role, dbname=MAINTENANCE_DATABASE)
    asyncio.run(_check(received, Archive(archive.resolve()), dsn))


async def _check(received: Path, archive: Archive, dsn: str) -> None:
    replay = await replay_of(dsn)
    end = await check_replayed(replay, archive, received)
    remark(
        f"All that was received until {end.at:%Y-%m-%d %H:%M:%S.%f} UTC is there. The last commit is of"
        f" {replay.last_commit_at or 'an earlier time'}. What the cell acknowledged after that is lost."
    )
    archived, failed = await archive_received(received, archive, replay.data_folder)
    remark(f"Received files that are in the archive now: {len(archived)}.")
    if failed:
        remark(
            f"Not archived, from {failed[0]} to {failed[-1]}: {len(failed)}. Run this again, or keep {received} for as"
            " long as you may want to restore a moment before the loss."
        )


@wal_command.command("prune")
@_received
@archive_option(required=True)
def prune_command(received: Path, archive: Path) -> None:
    """Delete received files that the archive has. Meant for a timer on the machine that receives them."""
    names = asyncio.run(prune_received(received, Archive(archive.resolve())))
    remark(f"Deleted files that the archive has: {len(names)}.")
