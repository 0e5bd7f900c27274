"""Names, paths and ports of a machine that runs the whole service.

    machine = find_machine("sql.example", "/opt/plainsql/bin/plainsql-server")

The cell is the PostgreSQL cluster `main`, which Debian creates with the package. The directory has a cluster of its
own, `directory`, because customers' SQL runs on the cell. `pg_createcluster` chooses its port; once it exists,
`with_directory_cluster(machine)` has its port and data folder.
"""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

CELL_CLUSTER, DIRECTORY_CLUSTER = "main", "directory"
DIRECTORY_DATABASE = "plainsql_directory"
ADMIN_ROLE, OWNER_ROLE = "plainsql_admin", "plainsql_owner"
# Every Debian has it.
LOCALE = "C.UTF-8"
# What commands get of root's environment: nothing.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": LOCALE}
_CLUSTERS = Path("/etc/postgresql")
# What `pg_createcluster` chooses on a new machine.
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
    directory_data_folder: str = "/var/lib/postgresql/15/directory"
    config: Path = Path("/etc/plainsql")
    clusters: Path = _CLUSTERS
    units: Path = Path("/etc/systemd/system")
    archive: Path | None = None
    """The folder of the archives of both clusters. None: they get none."""

    def cluster(self, name: str) -> Path:
        """The folder with the configuration of a cluster."""
        return self.clusters / self.major / name


def find_machine(host: str, program: str, clusters: Path = _CLUSTERS) -> Machine:
    """The machine that this runs on. Raises SetupError if it has no PostgreSQL cluster for the cell."""
    major = _find_major(clusters)
    machine = Machine(host=host, program=program, major=major, clusters=clusters)
    return with_directory_cluster(
        replace(
            machine,
            cell_port=int(_setting(machine, CELL_CLUSTER, "port")),
            cell_data_folder=_setting(machine, CELL_CLUSTER, "data_directory"),
        )
    )


def with_directory_cluster(machine: Machine) -> Machine:
    """The machine with the port and the data folder that the directory's cluster has, if there is one."""
    if not (machine.cluster(DIRECTORY_CLUSTER) / "postgresql.conf").exists():
        return machine
    return replace(
        machine,
        directory_port=int(_setting(machine, DIRECTORY_CLUSTER, "port")),
        directory_data_folder=_setting(machine, DIRECTORY_CLUSTER, "data_directory"),
    )


def _find_major(clusters: Path) -> str:
    """The version that has the directory already, or else the newest: a later version must not make a second one."""
    of_cell, of_directory = _majors(clusters, CELL_CLUSTER), _majors(clusters, DIRECTORY_CLUSTER)
    if not of_cell:
        raise SetupError(
            f"There is no PostgreSQL cluster {CELL_CLUSTER!r}. Install the package `postgresql` first. If it is"
            " installed, it could not create the cluster: usually the machine lacks the locale that LANG or LC_ALL"
            f" names. Then run `env LC_ALL=C.UTF-8 pg_createcluster VERSION {CELL_CLUSTER} --encoding UTF8 --start`."
        )
    both = of_cell & of_directory
    if of_directory and not both:
        raise SetupError(
            f"The cluster {DIRECTORY_CLUSTER!r} is of PostgreSQL {max(of_directory, key=int)}, which has no cluster"
            f" {CELL_CLUSTER!r}. Both must have the same version."
        )
    return max(both or of_cell, key=int)


def _majors(clusters: Path, cluster: str) -> set[str]:
    return {path.parent.name for path in clusters.glob(f"*/{cluster}") if path.parent.name.isdigit()}


def _setting(machine: Machine, cluster: str, name: str) -> str:
    try:
        found = subprocess.run(
            ["pg_conftool", "--short", machine.major, cluster, "show", name],
            check=True, capture_output=True, text=True,
            env={**ENVIRONMENT, "PG_CLUSTER_CONF_ROOT": str(machine.clusters)},
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        place = f"{machine.major}/{cluster}"
        raise SetupError(f"The setting {name!r} of the cluster {place} can't be read: {error}.") from error
    return found.stdout.strip()
