"""What must be true of a machine before it is changed. Each check raises SetupError.

    check_program(machine)
    check_archive(machine)
    check_cell_cluster(machine)

`setup` replaces `pg_hba.conf` of the cluster `main`, and other roles can't log in afterwards. So it must be a cluster
that has no other use.
"""

import shutil

from plainsql_server.operations.files.units import guard_unit
from plainsql_server.operations.setup.machine import CELL_CLUSTER, ENVIRONMENT, Machine, SetupError
from plainsql_server.operations.setup.running import AS_POSTGRES, ask, run
from plainsql_server.operations.setup.steps import is_cell, is_ours

_OTHERS = """
    SELECT 'the database ' || datname FROM pg_database WHERE datname NOT IN ('postgres', 'template0', 'template1')
    UNION ALL
    SELECT 'the role ' || rolname FROM pg_roles WHERE rolname <> 'postgres' AND rolname !~ '^(pg|plainsql)_'
    ORDER BY 1
"""
_SHOWN_MAX = 10


def check_program(machine: Machine) -> None:
    """systemd and the users postgres and plainsql must be able to start the program."""
    try:
        guard_unit(machine.program, machine.cell_data_folder)
    except ValueError as error:
        raise SetupError(str(error)) from error
    try:
        run([*AS_POSTGRES, machine.program, "--version"])
    except SetupError as error:
        raise SetupError(
            f"The user postgres can't run {machine.program}. Install PlainSQL into a folder that all users can read,"
            f" such as /opt/plainsql, with a umask of 022. ({error})"
        ) from error


def check_archive(machine: Machine) -> None:
    """An archive needs pgBackRest, and a folder that does not depend on where the command is run."""
    if machine.archive is None:
        return
    if not machine.archive.is_absolute():
        raise SetupError(f"The folder of the archives must be an absolute path, not {str(machine.archive)!r}.")
    if shutil.which("pgbackrest", path=ENVIRONMENT["PATH"]) is None:
        raise SetupError("An archive needs pgBackRest: install the package pgbackrest.")


def check_cell_cluster(machine: Machine) -> None:
    """The cluster `main` must be a cell already, or have no databases and roles of others.

    If `cell init` was interrupted and PostgreSQL restarted, `pg_hba.conf` is that of a cell: no other role can log in
    any more, and the superuser can't be asked.
    """
    if is_cell(machine) or is_ours(machine.cluster(CELL_CLUSTER) / "pg_hba.conf"):
        return
    others = ask(machine, CELL_CLUSTER, _OTHERS)
    if others:
        more = f" and {len(others) - _SHOWN_MAX} more" if len(others) > _SHOWN_MAX else ""
        raise SetupError(
            f"The cluster {machine.major}/{CELL_CLUSTER} is in use: it has {', '.join(others[:_SHOWN_MAX])}{more}."
            " As a cell, it would refuse all their logins. Use another machine, or add --use-existing."
        )
