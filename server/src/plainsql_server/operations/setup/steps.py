"""The steps that prepare a machine, in order. Each is a command that an operator could type, or a file.

    for step in steps_of(machine):
        if not step.is_done():
            step.run()

A step that is done is left alone, so the steps can be run again: after a failure, they continue where it was. A step is
done if the last thing that it writes exists. Two kinds of files are overwritten: PostgreSQL's own `pg_hba.conf` and
`pg_ident.conf`, and all units if one is missing, as after an upgrade to a version that has one more. A copy is kept of
PostgreSQL's files, and of a unit that was edited.

Take the steps one by one, as above: what a later step writes depends on what earlier steps made.
"""

import grp
import os
import pwd
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from plainsql_server.directory.sealing.keyring import new_key
from plainsql_server.operations.files.drop_in import memory_drop_in
from plainsql_server.operations.files.placing import WRITTEN_BY
from plainsql_server.operations.files.units import BACKUP_USER, USER, guard_unit, unit_texts
from plainsql_server.operations.setup.archives import archive_steps
from plainsql_server.operations.setup.certificates import certificate_steps
from plainsql_server.operations.setup.directory_files import directory_texts
from plainsql_server.operations.setup.environment import SECRETS_KEYS, environment_texts
from plainsql_server.operations.setup.machine import (
    ADMIN_ROLE,
    CELL_CLUSTER,
    DIRECTORY_CLUSTER,
    DIRECTORY_DATABASE,
    LOCALE,
    OWNER_ROLE,
    Machine,
    SetupError,
    with_directory_cluster,
)
from plainsql_server.operations.setup.running import AS_POSTGRES, ask, cluster_option, run, succeeds
from plainsql_server.operations.setup.step import SetupStep, command_step, placed_step


def steps_of(machine: Machine) -> Iterator[SetupStep]:
    """Every step for a machine."""
    for user in (USER, BACKUP_USER):
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", user]
        yield command_step(command, partial(_has_user, user))
    # All users with a key must be able to reach it, whatever the umask was when the folder was made.
    yield command_step(["install", "-d", "--mode=755", str(machine.config)], partial(_others_can_enter, machine.config))
    yield from certificate_steps(machine)
    yield from _directory_steps(machine)
    machine = with_directory_cluster(machine)
    yield from _cell_steps(machine)
    if machine.archive is not None:
        yield from archive_steps(machine, machine.archive, cell_options(machine))
    units = [machine.units / name for name in unit_texts(machine.program)]
    yield command_step([machine.program, "units", str(machine.units)], partial(_all_exist, units))
    yield _keys_step(machine)
    for name, text in environment_texts(machine).items():
        yield _file(machine.config / name, text)
    yield command_step(["systemctl", "daemon-reload"], lambda: not Path("/run/systemd/system").is_dir())


def is_cell(machine: Machine) -> bool:
    """Whether `cell init` is done."""
    return (machine.cluster(CELL_CLUSTER) / "guard.service").exists()


def _directory_steps(machine: Machine) -> Iterator[SetupStep]:
    folder, place = machine.cluster(DIRECTORY_CLUSTER), [machine.major, DIRECTORY_CLUSTER]
    # It takes the next free port.
    create = ["env", f"LC_ALL={LOCALE}", "pg_createcluster", *place, "--encoding", "UTF8"]
    yield SetupStep(shlex.join(create), (folder / "environment").exists, partial(_create_cluster, folder, create))
    yield command_step(["pg_ctlcluster", *place, "start"], partial(succeeds, ["pg_ctlcluster", *place, "status"]))
    option = cluster_option(machine, DIRECTORY_CLUSTER)
    role = [*AS_POSTGRES, "createuser", *option, "--createrole", OWNER_ROLE]
    yield command_step(role, partial(_finds, machine, f"SELECT 1 FROM pg_roles WHERE rolname = '{OWNER_ROLE}'"))
    database = [*AS_POSTGRES, "createdb", *option, "--owner", OWNER_ROLE, DIRECTORY_DATABASE]
    exists = f"SELECT 1 FROM pg_database WHERE datname = '{DIRECTORY_DATABASE}'"
    yield command_step(database, partial(_finds, machine, exists))
    for name, text in directory_texts(machine).items():
        yield placed_step(folder / name, text, partial(is_ours, folder / name))


def _create_cluster(folder: Path, command: Sequence[str]) -> str:
    if folder.exists():
        drop = f"pg_dropcluster --stop {folder.parent.name} {folder.name}"
        raise SetupError(f"The cluster in {folder} is not complete. If it is of no use, remove it: `{drop}`.")
    return run(command)


def _cell_steps(machine: Machine) -> Iterator[SetupStep]:
    """A cell that is reached from this machine only."""
    folder, port = str(machine.cluster(CELL_CLUSTER)), ["--port", str(machine.cell_port)]
    init = [*AS_POSTGRES, machine.program, "cell", "init", folder, *cell_options(machine), *port]
    yield command_step(init, partial(is_cell, machine))
    # Not copies of the files in the cluster's folder: the user postgres owns it, and root runs what these say.
    drop_in = machine.units / f"postgresql@{machine.major}-{CELL_CLUSTER}.service.d/plainsql.conf"
    yield placed_step(drop_in, memory_drop_in(), drop_in.exists)
    guard = machine.units / "plainsql-guard.service"
    yield placed_step(guard, guard_unit(machine.program, machine.cell_data_folder), guard.exists)


def cell_options(machine: Machine) -> list[str]:
    """The options of `cell init` and `cell files` for the cell."""
    own = machine.config / "cell"
    return [
        "--admin-role", ADMIN_ROLE, "--data-folder", machine.cell_data_folder, "--program", machine.program,
        "--listen-addresses", "localhost", "--network", "127.0.0.1/32", "--network", "::1/128",
        "--cert-file", f"{own}/server.crt", "--key-file", f"{own}/server.key",
        "--client-ca-file", f"{own}/clients.crt", "--client-crl-file", f"{own}/clients.crl",
    ]  # fmt: skip


def _finds(machine: Machine, query: str) -> bool:
    try:
        return ask(machine, DIRECTORY_CLUSTER, query) == ["1"]
    except SetupError:
        # The command that follows says why.
        return False


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _others_can_enter(folder: Path) -> bool:
    return folder.is_dir() and bool(folder.stat().st_mode & 0o001)


def _all_exist(files: Sequence[Path]) -> bool:
    return all(file.exists() for file in files)


def is_ours(file: Path) -> bool:
    """Whether PlainSQL wrote a file."""
    return file.exists() and file.read_text(errors="replace").startswith(WRITTEN_BY)


def _file(path: Path, text: str) -> SetupStep:
    return SetupStep(f"write {path}", path.exists, partial(_write, path, text))


def _keys_step(machine: Machine) -> SetupStep:
    path = machine.config / SECRETS_KEYS
    shown = (
        f"(umask 077 && {machine.program} secrets new-key > {path}) && chgrp {USER} {path} && chmod 640 {path}"
    )  # fmt: skip
    return SetupStep(shown, path.exists, partial(_write_keys, path))


def _write_keys(path: Path) -> str:
    """Write a new key, for root and the planes."""
    return _write(path, f"{new_key()}\n", group=USER)


def _write(path: Path, text: str, group: str | None = None) -> str:
    """Write a new file that only root can read, and a group if there is one. It has its name when it is complete."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        if group is not None:
            os.fchown(file.fileno(), 0, grp.getgrnam(group).gr_gid)
            os.fchmod(file.fileno(), 0o640)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    return ""
