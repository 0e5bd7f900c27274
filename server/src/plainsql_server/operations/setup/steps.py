"""The steps that prepare a machine, in order. Each is a command that an operator could type, or a file.

    for step in steps_of(machine):
        if not step.is_done():
            step.run()

A step that is done is left alone, so the steps can be run again: after a failure, they continue where it was. No file
is overwritten, with one exception: PostgreSQL's own `pg_hba.conf` and `pg_ident.conf`, of which a copy is kept.
"""

import grp
import os
import pwd
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plainsql_server.directory.sealing.keyring import new_key
from plainsql_server.operations.files.placing import WRITTEN_BY, place_file
from plainsql_server.operations.files.units import BACKUP_USER, USER
from plainsql_server.operations.setup.directory_files import directory_texts
from plainsql_server.operations.setup.environment import SECRETS_KEYS, environment_texts
from plainsql_server.operations.setup.machine import (
    ADMIN_ROLE,
    CELL_CLUSTER,
    DIRECTORY_CLUSTER,
    DIRECTORY_DATABASE,
    OWNER_ROLE,
    Machine,
    SetupError,
)

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class SetupStep:
    """What is done, in the words of a shell, and whether it is done already."""

    shown: str
    is_done: Callable[[], bool]
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Certificate:
    """A certificate of this machine: its name in the register, the folder of its files, and its owner."""

    name: str
    folder: str
    owner: str
    client: str | None = None
    servers: tuple[str, ...] = ()


def steps_of(machine: Machine) -> Iterator[SetupStep]:
    """Every step for a machine."""
    for user in (USER, BACKUP_USER):
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", user]
        yield _command(command, partial(_has_user, user))
    yield from _pki_steps(machine)
    yield from _directory_steps(machine)
    yield from _cell_steps(machine)
    yield _command([machine.program, "units"], (machine.units / "plainsql-data.service").exists)
    keys = machine.config / SECRETS_KEYS
    yield SetupStep(f"{machine.program} secrets new-key > {keys}", keys.exists, partial(_write_keys, keys))
    for name, text in environment_texts(machine).items():
        yield _file(machine.config / name, text)
    yield _command(["systemctl", "daemon-reload"], lambda: not Path("/run/systemd/system").is_dir())


def _pki_steps(machine: Machine) -> Iterator[SetupStep]:
    pki, common = machine.config / "pki", [machine.program, "pki"]
    yield _command([*common, "init", str(pki)], (pki / "register.json").exists)
    for each in _certificates(machine):
        kind = "client" if each.client else "server"
        subject = ["--client", each.client] if each.client else [f"--server={host}" for host in each.servers]
        folder = machine.config / each.folder
        command = [*common, "issue", each.name, *subject, "--to", str(folder), "--owner", each.owner, "--pki", str(pki)]
        yield _command(command, (folder / f"{kind}.crt").exists)


def _certificates(machine: Machine) -> list[_Certificate]:
    return [
        _Certificate("cell", "cell", "postgres", servers=_LOCAL_HOSTS),
        _Certificate("directory", "directory", "postgres", servers=_LOCAL_HOSTS),
        _Certificate("data-server", "data", USER, servers=(machine.host,)),
        _Certificate("control-server", "control", USER, servers=(machine.host,)),
        _Certificate("data", "data", USER, client="plainsql_data"),
        _Certificate("control", "control", USER, client=ADMIN_ROLE),
        _Certificate("operator", "operator", "root", client=ADMIN_ROLE),
        _Certificate("backup", "backup", BACKUP_USER, client=ADMIN_ROLE),
    ]


def _directory_steps(machine: Machine) -> Iterator[SetupStep]:
    port, folder = str(machine.directory_port), machine.cluster(DIRECTORY_CLUSTER)
    create = ["pg_createcluster", machine.major, DIRECTORY_CLUSTER, "--port", port, "--start"]
    yield _command(create, folder.exists)
    as_postgres = ["runuser", "-u", "postgres", "--"]
    role = [*as_postgres, "createuser", "--port", port, "--createrole", OWNER_ROLE]
    yield _command(role, partial(_finds, port, f"SELECT FROM pg_roles WHERE rolname = '{OWNER_ROLE}'"))
    database = [*as_postgres, "createdb", "--port", port, "--owner", OWNER_ROLE, DIRECTORY_DATABASE]
    yield _command(database, partial(_finds, port, f"SELECT FROM pg_database WHERE datname = '{DIRECTORY_DATABASE}'"))
    for name, text in directory_texts(machine).items():
        file = folder / name
        yield SetupStep(f"write {file}", partial(_is_ours, file), partial(_place, file, text))


def _cell_steps(machine: Machine) -> Iterator[SetupStep]:
    """A cell that is reached from this machine only."""
    folder, own = machine.cluster(CELL_CLUSTER), machine.config / "cell"
    init = [
        "runuser", "-u", "postgres", "--", machine.program, "cell", "init", str(folder), "--admin-role", ADMIN_ROLE,
        "--port", str(machine.cell_port), "--data-folder", machine.cell_data_folder, "--program", machine.program,
        "--listen-addresses", "localhost", "--network", "127.0.0.1/32", "--network", "::1/128",
        "--cert-file", f"{own}/server.crt", "--key-file", f"{own}/server.key",
        "--client-ca-file", f"{own}/clients.crt", "--client-crl-file", f"{own}/clients.crl",
    ]  # fmt: skip
    yield _command(init, (folder / "conf.d/plainsql.conf").exists)
    unit = f"postgresql@{machine.major}-{CELL_CLUSTER}.service.d/plainsql.conf"
    for source, target in (("memory.conf", unit), ("guard.service", "plainsql-guard.service")):
        place = machine.units / target
        yield _command(["install", "-D", "--mode=644", str(folder / source), str(place)], place.exists)


def _command(command: Sequence[str], is_done: Callable[[], bool]) -> SetupStep:
    return SetupStep(shlex.join(command), is_done, partial(_run, command))


def _run(command: Sequence[str]) -> None:
    ended = _ended(command)
    if ended.returncode != 0:
        output = " ".join((ended.stderr or ended.stdout).split())
        raise SetupError(f"`{shlex.join(command)}` failed: {output}")


def _ended(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        # Other users can't enter the folder of root.
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
    except OSError as error:
        raise SetupError(f"`{shlex.join(command)}` failed: {error}") from error


def _finds(port: str, query: str) -> bool:
    count = f"SELECT count(*) FROM ({query}) found"
    psql = ["psql", "--no-psqlrc", "--tuples-only", "--port", port, "--command", count]
    ended = _ended(["runuser", "-u", "postgres", "--", *psql])
    return ended.returncode == 0 and ended.stdout.strip() == "1"


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _is_ours(file: Path) -> bool:
    return file.exists() and file.read_text(errors="replace").startswith(WRITTEN_BY)


def _place(file: Path, text: str) -> None:
    place_file(file, text)


def _file(path: Path, text: str) -> SetupStep:
    return SetupStep(f"write {path}", path.exists, partial(_write, path, text))


def _write_keys(path: Path) -> None:
    """Write a new key, for root and the planes."""
    _write(path, f"{new_key()}\n", group=USER)


def _write(path: Path, text: str, group: str | None = None) -> None:
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
