"""`plainsql-server restore --at`: its options, and the restore of one database as it was at a moment."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO, TypedDict, TypeVar

import click

from plainsql_server.cli.output import remark
from plainsql_server.cli.progress import Bar
from plainsql_server.cli.running import chosen_database, with_directory
from plainsql_server.control_plane import cells, organizations
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.point_in_time.failures import failure_of
from plainsql_server.operations.point_in_time.free_space import FREE_RATIO
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.restore_at import RestoredAt, restore_at
from plainsql_server.operations.restore import RestoreTimes, replace_database, restore_database

Command = TypeVar("Command", bound=Callable[..., Any])

# Values of --at: all that the cell has written, and all that the archive has of that, which may be less.
LATEST, ARCHIVED = "latest", "archived"


class _PointInTime(click.DateTime):
    """A time with its zone, LATEST or ARCHIVED."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in (LATEST, ARCHIVED) else super().convert(value, param, ctx)


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def archive_option(*, required: bool = False) -> Callable[[Command], Command]:
    """`--archive FOLDER`. Only `restore` needs no archive for all that it does."""
    text = "folder of pgBackRest's configuration for the cell."
    shown = f"{text[0].upper()}{text[1:]}" if required else f"With --at: {text}"
    return click.option("--archive", type=_FOLDER, required=required, metavar="FOLDER", help=shown)


work_folder_option = click.option(
    "--work-folder", type=_FOLDER, default="/var/tmp", show_default=True, metavar="FOLDER",
    help="Folder for the spare cluster. It needs room for the database and what its cell wrote since the backup.",
)  # fmt: skip

free_percent_option = click.option(
    "--free-percent", type=click.IntRange(0, 100), default=round(FREE_RATIO * 100), show_default=True,
    help="Give up if less of the work folder's disk is free, or less than 1 GiB.",
)  # fmt: skip

cell_of_archive_option = click.option(
    "--cell", "cell_name", metavar="NAME", help="Cell of the archive; not needed if there is only one."
)

_OPTIONS = (
    click.option(
        "--at", type=_PointInTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"]), metavar="TIME",
        help="Restore a database as it was then, such as 2027-01-31T12:30:00Z; 'latest' as it was last; 'archived' as"
        " it was at the end of the archive.",
    ),
    click.option("--from", "origin", metavar="NAME-OR-ID", help="With --at: the database that was so."),
    archive_option(),
    click.option(
        "--received", type=_FOLDER, metavar="FOLDER",
        help="With --at: folder of WAL that was received from the cell and that the archive may lack.",
    ),
    work_folder_option,
    free_percent_option,
)  # fmt: skip


class PointInTimeOptions(TypedDict):
    """The options of `restore` that belong to --at."""

    at: datetime | str | None
    origin: str | None
    archive: Path | None
    received: Path | None
    work_folder: Path
    free_percent: int


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the content goes."""

    name: str
    organization: str | None
    replace: bool
    to: str | None
    lost: bool
    times: RestoreTimes


def point_in_time_options(command: Command) -> Command:
    """Give a command the options in PointInTimeOptions."""
    return reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


async def cell_of_archive(directory: Directory, name: str | None) -> CellRecord:
    """The cell with that name, or the only one. Raises UsageError if there are several."""
    if name is not None:
        return await cells.get(directory, name)
    listed = await cells.list_(directory)
    if len(listed) != 1:
        raise click.UsageError("There are several cells. Name the one of the archive with --cell.")
    return listed[0]


def restore_as_it_was(target: Destination, options: PointInTimeOptions) -> str:
    """Restore, say what was restored, and return the id of the database."""
    at, folder, received = options["at"], options["archive"], options["received"]
    point = at if isinstance(at, datetime) else None
    if folder is None:
        raise click.UsageError("--at needs --archive.")
    if target.replace == (options["origin"] is not None):
        raise click.UsageError("Give the database to copy with --from, or use --replace.")

    async def work(directory: Directory) -> RestoredAt:
        origin = await chosen_database(directory, target.organization, options["origin"] or target.name)

        async def goal(file: BinaryIO, _: int) -> DatabaseRecord:
            if target.replace:
                return await replace_database(
                    directory, origin, file, bar, times=target.times, lost=target.lost, to=target.to
                )
            owner = await organizations.get(directory, target.organization or "")
            return await restore_database(directory, owner.id, target.name, file, bar, to=target.to)

        archive = Archive(folder.resolve(), received=received.resolve() if received else None)
        try:
            return await restore_at(
                directory, origin, point, archive, goal, folder=options["work_folder"],
                free_ratio=options["free_percent"] / 100, may_lack_the_last=at == ARCHIVED, progress=bar,
            )  # fmt: skip
        except Exception as error:
            raise failure_of("The restore", error) from error

    with Bar() as bar:
        restored = with_directory(work)
    last = f"{restored.last_commit_at:%Y-%m-%d %H:%M:%S.%f} UTC" if restored.last_commit_at else "unknown"
    remark(
        f"Restored the database {restored.database.name!r} on the cell {restored.database.cell_name!r} as it was"
        f" {_shown(at)}: {last}."
    )
    if point is None and not restored.is_whole:
        remark(_missing(restored.received_until, add_received=received is None))
    if restored.prepared:
        remark(
            f"Prepared transactions that are missing: {restored.prepared}. At that moment, they were neither committed"
            " nor rolled back. Their parts in other databases may be there."
        )
    return restored.database.id


def _missing(received_until: datetime | None, *, add_received: bool) -> str:
    """What may be missing if nothing shows where the WAL of the cell ends."""
    if received_until is None:
        hint = " If its WAL was received, add --received." if add_received else ""
        return f"What the cell may have committed later is not there.{hint}"
    until = f"{received_until:%Y-%m-%d %H:%M:%S.%f} UTC"
    return f"All that was received until {until} is there. What the cell acknowledged after that is not."


def _shown(at: datetime | str | None) -> str:
    """What comes before the time of the last commit."""
    if isinstance(at, datetime):
        return f"at {at.isoformat()}. The last commit of the cell before that"
    if at == LATEST:
        return "last. Its cell's last commit"
    return "at the end of the archive. The last commit of its cell there"
