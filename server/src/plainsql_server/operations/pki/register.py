"""The register of the authorities' folder: what was issued, to which files, and what was revoked.

    with locked(folder):
        register = read_register(folder)
        register.issued.append(...)
        write_register(folder, register)

A certificate is in the register before it is in a file. After a crash there may be a registered certificate that no
one has, but never one in use that cannot be listed and revoked.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from plainsql_server.operations.pki.authority import CertificateKind, Subject
from plainsql_server.operations.pki.files import write_file

_REGISTER = "register.json"
_LOCK = "lock"


class PkiError(Exception):
    """A certificate cannot be issued, renewed or revoked; the message says why."""


class Issued(msgspec.Struct, kw_only=True):
    """A certificate that was issued. The newest one of a name is the one in use."""

    name: str
    kind: CertificateKind
    serial: str
    """In hexadecimal, as openssl prints it."""
    common_name: str
    hosts: tuple[str, ...]
    authority: int
    issued_at: datetime
    expires_at: datetime
    folder: str
    owner: str | None
    certificate: str
    revoked_at: datetime | None = None

    @property
    def subject(self) -> Subject:
        return Subject(self.common_name, self.hosts)


class Register(msgspec.Struct, kw_only=True):
    """All that the folder's authorities have done."""

    authorities: dict[CertificateKind, list[int]]
    """The numbers of the trusted authorities of each kind. The last one signs."""
    issued: list[Issued] = []
    lists: int = 0
    """How many revocation lists were written: the number of the newest."""

    def current(self) -> dict[str, Issued]:
        """The certificate in use of each name, without names whose newest certificate was revoked."""
        newest = {each.name: each for each in self.issued}
        return {name: each for name, each in newest.items() if each.revoked_at is None}

    def get(self, name: str) -> Issued:
        """The certificate in use of a name."""
        try:
            return self.current()[name]
        except KeyError:
            raise PkiError(f"No certificate named {name!r} is in use. `pki list` shows all names.") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let no other command change the folder for the length of the block."""
    if not (folder / _REGISTER).exists():
        raise PkiError(f"There are no authorities in {folder}. Make them with `plainsql-server pki init {folder}`.")
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_register(folder: Path) -> Register:
    """Read the register. Raises PkiError if it is damaged."""
    try:
        return msgspec.json.decode((folder / _REGISTER).read_bytes(), type=Register)
    except msgspec.MsgspecError as error:
        raise PkiError(f"{folder / _REGISTER} is damaged: {error}. Restore it from a backup.") from error


def write_register(folder: Path, register: Register) -> None:
    """Replace the register; it is on the disk when this returns."""
    text = msgspec.json.format(msgspec.json.encode(register), indent=1).decode() + "\n"
    write_file(folder / _REGISTER, text, 0o600)
