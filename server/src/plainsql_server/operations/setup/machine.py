"""Names, paths and ports of a machine that runs the whole service.

    machine = find_machine("sql.example", "/opt/plainsql/bin/plainsql-server")

The cell is the PostgreSQL cluster `main`, which Debian creates with the package. The directory has a cluster of its
own, `directory`, because customers' SQL runs on the cell.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

CELL_CLUSTER, DIRECTORY_CLUSTER = "main", "directory"
DIRECTORY_DATABASE = "plainsql_directory"
ADMIN_ROLE, OWNER_ROLE = "plainsql_admin", "plainsql_owner"
_CLUSTERS = Path("/etc/postgresql")
_DIRECTORY_PORT = 5433


class SetupError(Exception):
    """The machine can't be prepared; the message says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with Debian's PostgreSQL packages."""

    host: str
    """The name that customers use, for the planes' certificates and URLs."""
    program: str
    """The path of `plainsql-server`."""
    major: str = "15"
    cell_port: int = 5432
    directory_port: int = _DIRECTORY_PORT
    cell_data_folder: str = "/var/lib/postgresql/15/main"
    config: Path = Path("/etc/plainsql")
    clusters: Path = _CLUSTERS
    units: Path = Path("/etc/systemd/system")

    def cluster(self, name: str) -> Path:
        """The folder with the configuration of a cluster."""
        return self.clusters / self.major / name


def find_machine(host: str, program: str) -> Machine:
    """The machine that this runs on. Raises SetupError if it has no PostgreSQL cluster for the cell."""
    majors = [path.parent.name for path in _CLUSTERS.glob(f"*/{CELL_CLUSTER}") if path.parent.name.isdigit()]
    if not majors:
        raise SetupError(f"There is no PostgreSQL cluster {CELL_CLUSTER!r}. Install the package `postgresql` first.")
    major = max(majors, key=int)
    has_directory = (_CLUSTERS / major / DIRECTORY_CLUSTER).exists()
    return Machine(
        host=host, program=program, major=major,
        cell_port=int(_setting(major, CELL_CLUSTER, "port")),
        directory_port=int(_setting(major, DIRECTORY_CLUSTER, "port")) if has_directory else _DIRECTORY_PORT,
        cell_data_folder=_setting(major, CELL_CLUSTER, "data_directory"),
    )  # fmt: skip


def _setting(major: str, cluster: str, name: str) -> str:
    try:
        found = subprocess.run(
            ["pg_conftool", "--short", major, cluster, "show", name], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"The setting {name!r} of the cluster {major}/{cluster} can't be read: {error}") from error
    return found.stdout.strip()
