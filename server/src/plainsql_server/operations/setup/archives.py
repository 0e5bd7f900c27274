"""The steps that give both clusters of a machine a continuous archive.

    for step in archive_steps(machine, Path("/srv/archive"), cell_options(machine)): ...

Each cluster has a folder of its own below that of the archives, and a key of its own.
"""

from collections.abc import Iterator
from pathlib import Path

from plainsql_server.operations.files.archive import CELL_ARCHIVE, DIRECTORY_ARCHIVE, ArchiveConfig
from plainsql_server.operations.setup.environment import SOCKET_FOLDER
from plainsql_server.operations.setup.machine import ADMIN_ROLE, CELL_CLUSTER, DIRECTORY_CLUSTER, Machine
from plainsql_server.operations.setup.step import SetupStep, command_step, placed_step

# The superuser that Debian makes, who logs in as the system user of the same name.
_SUPERUSER = "postgres"


def archive_steps(machine: Machine, folder: Path, cell_options: list[str]) -> Iterator[SetupStep]:
    """The folders, the configuration and the units. `cell_options` are those of `cell files`."""
    cell, directory = _archives(machine, folder)
    for archive in (cell, directory):
        repository = Path(archive.repository)
        make = ["install", "-d", "--owner=postgres", "--group=postgres", "--mode=700", str(repository)]
        yield command_step(make, repository.is_dir)
    files = [machine.program, "cell", "files", str(machine.cluster(CELL_CLUSTER)), *cell_options]
    port = ["--archive-port", str(cell.port)]
    yield command_step([*files, "--archive-to", cell.repository, *port], _conf(cell).exists)
    files = [machine.program, "directory", "files", str(machine.cluster(DIRECTORY_CLUSTER))]
    place = ["--data-folder", directory.data_folder, "--port", str(directory.port)]
    yield command_step([*files, "--archive-to", directory.repository, *place], _conf(directory).exists)
    # Not copies of the files in the clusters' folders: the user postgres owns them, and root runs what these say.
    units = {**cell.unit_texts(), **cell.restoring_texts(machine.program), **directory.unit_texts()}
    for name, text in units.items():
        yield placed_step(machine.units / name, text, (machine.units / name).exists)


def _archives(machine: Machine, folder: Path) -> tuple[ArchiveConfig, ArchiveConfig]:
    cell, directory = (machine.cluster(name) / "pgbackrest" for name in (CELL_CLUSTER, DIRECTORY_CLUSTER))
    return (
        ArchiveConfig(
            str(folder / "cell"), str(cell), ADMIN_ROLE, machine.cell_data_folder, SOCKET_FOLDER, machine.cell_port,
            CELL_ARCHIVE,
        ),
        ArchiveConfig(
            str(folder / "directory"), str(directory), _SUPERUSER, machine.directory_data_folder, SOCKET_FOLDER,
            machine.directory_port, DIRECTORY_ARCHIVE,
        ),
    )  # fmt: skip


def _conf(archive: ArchiveConfig) -> Path:
    return Path(archive.config_folder) / "pgbackrest.conf"
