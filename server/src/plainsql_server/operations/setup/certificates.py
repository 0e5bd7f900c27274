"""The steps that make the authorities and the certificates of a machine.

    for step in certificate_steps(machine): ...

A certificate is registered before its files exist. If `setup` was killed between the two, the files do not exist: the
certificate is revoked and issued again. Once all were issued, nothing is revoked: the files may be on another machine.
The file `certificates.issued`, which has no other use, records that.

New authorities are made only if there is no certificate yet. If the folder of the authorities is elsewhere, the
certificates of new ones would not be trusted by those who trust the old ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from plainsql_server.operations.files.units import BACKUP_USER, USER
from plainsql_server.operations.pki.register import read_register
from plainsql_server.operations.setup.environment import LAST_FILE
from plainsql_server.operations.setup.machine import ADMIN_ROLE, Machine, SetupError
from plainsql_server.operations.setup.running import run
from plainsql_server.operations.setup.step import SetupStep, command_step

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
# `pki issue` writes this one last.
_LAST_PUBLISHED = "servers.crl"
# Written when all certificates were issued.
_ALL_ISSUED = "certificates.issued"


@dataclass(frozen=True, slots=True)
class _Certificate:
    """A certificate of this machine: its name in the register, the folder of its files, and its owner."""

    name: str
    folder: Path
    owner: str
    client: str | None = None
    servers: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "client" if self.client else "server"

    def is_complete(self) -> bool:
        return self.file().exists() and (self.folder / _LAST_PUBLISHED).exists()

    def file(self) -> Path:
        return self.folder / f"{self.kind}.crt"


def certificate_steps(machine: Machine) -> Iterator[SetupStep]:
    """Authorities, and a certificate for each program."""
    pki, common = machine.config / "pki", [machine.program, "pki"]
    wanted = _certificates(machine)
    init = command_step([*common, "init", str(pki)], partial(_needs_no_authorities, pki, wanted))
    yield SetupStep(init.shown, init.is_done, partial(_make_authorities, [*common, "init", str(pki)], wanted))
    for each in wanted:
        subject = ["--client", each.client] if each.client else [f"--server={host}" for host in each.servers]
        revoke = [*common, "revoke", each.name, "--pki", str(pki)]
        yield replace(command_step(revoke, partial(_has_nothing_to_revoke, machine, each)), is_repair=True)
        target = ["--to", str(each.folder), "--owner", each.owner, "--pki", str(pki)]
        yield command_step([*common, "issue", each.name, *subject, *target], partial(_is_issued, machine, each))
    marker = machine.config / _ALL_ISSUED
    yield SetupStep(f"touch {marker}", marker.exists, partial(_mark, marker))


def _mark(marker: Path) -> str:
    marker.touch(mode=0o644)
    return ""


def _certificates(machine: Machine) -> list[_Certificate]:
    config = machine.config
    return [
        _Certificate("cell", config / "cell", "postgres", servers=_LOCAL_HOSTS),
        _Certificate("directory", config / "directory", "postgres", servers=_LOCAL_HOSTS),
        _Certificate("data-server", config / "data", USER, servers=(machine.host,)),
        _Certificate("control-server", config / "control", USER, servers=(machine.host,)),
        _Certificate("data", config / "data", USER, client="plainsql_data"),
        _Certificate("control", config / "control", USER, client=ADMIN_ROLE),
        _Certificate("operator", config / "operator", "root", client=ADMIN_ROLE),
        _Certificate("backup", config / "backup", BACKUP_USER, client=ADMIN_ROLE),
    ]


def _needs_no_authorities(pki: Path, wanted: list[_Certificate]) -> bool:
    return (pki / "register.json").exists() or all(each.is_complete() for each in wanted)


def _make_authorities(command: list[str], wanted: list[_Certificate]) -> str:
    found = [str(each.file()) for each in wanted if each.file().exists()]
    if found:
        raise SetupError(
            f"{command[-1]} has no authorities, but there are certificates of some: {', '.join(found)}. New authorities"
            " would not match them. Bring the folder back, or issue what is missing where it is."
        )
    return run(command)


def _has_nothing_to_revoke(machine: Machine, wanted: _Certificate) -> bool:
    return not _may_be_unfinished(machine) or wanted.is_complete() or not _is_registered(machine, wanted)


def _is_issued(machine: Machine, wanted: _Certificate) -> bool:
    """Whether the files exist. Revoking brings lists to the folder of an incomplete certificate, so that it has all."""
    return wanted.is_complete() and (not _may_be_unfinished(machine) or _is_registered(machine, wanted))


def _may_be_unfinished(machine: Machine) -> bool:
    """Whether `setup` never issued all certificates on this machine, on which the authorities are."""
    # Versions before 0.62 wrote no marker, but LAST_FILE after all certificates.
    is_complete = any((machine.config / name).exists() for name in (_ALL_ISSUED, LAST_FILE))
    return not is_complete and (machine.config / "pki/register.json").exists()


def _is_registered(machine: Machine, wanted: _Certificate) -> bool:
    return wanted.name in read_register(machine.config / "pki").current()
