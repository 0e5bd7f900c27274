"""Issues, renews and revokes certificates, and replaces the authorities that sign them.

    init(folder)
    subject = Subject("plainsql_data", ())
    order = CertificateOrder("data", CertificateKind.CLIENT, subject, Path("/etc/plainsql/data"), "plainsql", 365)
    issue(folder, order)
    renew(folder, ["data"], days=365)
    renew_due(folder, within_days=90, days=365).failures
    revoke(folder, "data")
    rotate(folder, CertificateKind.CLIENT); renew(...); retire(folder, CertificateKind.CLIENT)

`folder` has the authorities' keys and the register. An order's own folder gets the certificate, its key, and what its
owner trusts: the certificates of all current authorities, and their revocation lists. Every command brings these files
up to date in all folders that exist on this machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from plainsql_server.core.clock import now
from plainsql_server.operations.pki.authority import (
    Authority,
    CertificateKind,
    Subject,
    certificate_pem,
    key_pem,
    new_authority,
    new_key,
    public_key_of,
    read_authority,
)
from plainsql_server.operations.pki.files import make_folder, write_file
from plainsql_server.operations.pki.register import (
    Issued,
    PkiError,
    Register,
    locked,
    read_register,
    write_register,
)

_PUBLIC, _SECRET, _FOLDER, _SECRET_FOLDER = 0o644, 0o600, 0o755, 0o700


@dataclass(frozen=True, slots=True)
class CertificateOrder:
    """A certificate that is wanted, and where its files go."""

    name: str
    kind: CertificateKind
    subject: Subject
    folder: Path
    owner: str | None
    days: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """What was renewed, and why the rest was not."""

    renewed: list[Issued]
    failures: list[str]


def init(folder: Path) -> None:
    """Make both authorities. All or nothing: the folder gets its name when it is complete."""
    if folder.exists() and any(folder.iterdir()):
        raise PkiError(f"{folder} is not empty. If it has authorities, they stay in use.")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    make_folder(unfinished, _SECRET_FOLDER)
    at = now()
    register = Register(authorities={kind: [1] for kind in CertificateKind})
    for kind in CertificateKind:
        _write_authority(unfinished, kind, 1, at)
    write_register(unfinished, register)
    _publish(unfinished, register, at)
    if folder.exists():
        folder.rmdir()
    unfinished.rename(folder)


def issue(folder: Path, order: CertificateOrder) -> Issued:
    """Issue a certificate with a new key for a name that has none."""
    with locked(folder):
        register = read_register(folder)
        if order.name in register.current():
            raise PkiError(f"{order.name!r} has a certificate. Use `pki renew`, or `pki revoke` it first.")
        place = (order.kind, str(order.folder))
        taken = [each.name for each in register.current().values() if (each.kind, each.folder) == place]
        if taken:
            raise PkiError(f"{order.folder} has the {order.kind} certificate of {taken[0]!r}. Use another folder.")
        key = new_key()
        issued = _sign(folder, register, order, key.public_key())
        make_folder(order.folder, _FOLDER)
        write_file(order.folder / f"{order.kind}.key", key_pem(key), _SECRET, order.owner)
        _write_certificate(issued)
        _publish(folder, register, now())
    return issued


def renew(folder: Path, names: Sequence[str], days: int) -> list[Issued]:
    """Sign the keys of these names again, with the newest authority. The previous certificates stay valid.

    Keys stay, so a single file changes: a process that reads certificate and key never sees two that don't match. If
    one of the keys is missing, nothing is renewed.
    """
    with locked(folder):
        register = read_register(folder)
        previous = [register.get(name) for name in names]
        _refuse_missing_keys(previous)
        renewed = [_renew(folder, register, each, days) for each in previous]
        _publish(folder, register, now())
    return renewed


def renew_due(folder: Path, within_days: int, days: int) -> Renewal:
    """Renew what expires within this time. One certificate that can't be renewed stops no other.

    If a certificate was registered and not written to its file, as after a crash, the file gets it now.
    """
    renewal = Renewal([], [])
    with locked(folder):
        register, limit = read_register(folder), now() + timedelta(days=within_days)
        for each in register.current().values():
            try:
                if each.expires_at <= limit:
                    _refuse_missing_key(each)
                    renewal.renewed.append(_renew(folder, register, each, days))
                elif _is_unwritten(register, each):
                    _write_certificate(each)
                    renewal.renewed.append(each)
            except (PkiError, OSError, LookupError) as error:
                renewal.failures.append(f"{each.name!r} was not renewed: {error}")
        try:
            _publish(folder, register, now())
        except OSError as error:
            renewal.failures.append(f"The files of trusted authorities could not be written everywhere: {error}")
    return renewal


def revoke(folder: Path, name: str) -> list[Issued]:
    """Revoke all certificates of a name, also if they have expired: the name is then free, and nothing waits for it."""
    with locked(folder):
        register, at = read_register(folder), now()
        revoked = [each for each in register.issued if each.name == name and each.revoked_at is None]
        if not revoked:
            raise PkiError(f"{name!r} has no certificate that could be revoked. `pki list` shows all names.")
        for each in revoked:
            each.revoked_at = at
        write_register(folder, register)
        _publish(folder, register, at)
    return revoked


def rotate(folder: Path, kind: CertificateKind) -> int:
    """Add a new authority. It signs from now on, and the previous ones stay trusted. Returns its number."""
    with locked(folder):
        register, at = read_register(folder), now()
        number = register.authorities[kind][-1] + 1
        # A crash before the register is written leaves files that the next call replaces.
        _write_authority(folder, kind, number, at)
        register.authorities[kind].append(number)
        write_register(folder, register)
        _publish(folder, register, at)
    return number


def retire(folder: Path, kind: CertificateKind) -> list[int]:
    """Stop trusting all authorities but the newest. Refused while a valid certificate in use is from one of them."""
    with locked(folder):
        register, at = read_register(folder), now()
        *older, newest = register.authorities[kind]
        if not older:
            raise PkiError(f"There is only one authority for {kind} certificates. Add one with `pki rotate` first.")
        of_older = [each for each in register.current().values() if each.kind is kind and each.authority in older]
        left = sorted(each.name for each in of_older if each.expires_at > at)
        if left:
            raise PkiError(f"Renew these certificates first, or revoke them: {', '.join(left)}.")
        register.authorities[kind] = [newest]
        write_register(folder, register)
        _publish(folder, register, at)
    return older


def all_issued(folder: Path) -> list[Issued]:
    """Everything that was issued, oldest first."""
    with locked(folder):
        return read_register(folder).issued


def in_use(folder: Path) -> list[Issued]:
    """The newest certificate of each name, unless it was revoked."""
    with locked(folder):
        return list(read_register(folder).current().values())


def authority_file(folder: Path, kind: CertificateKind, number: int) -> Path:
    """The certificate of an authority; its key is beside it."""
    return folder / f"{kind}s-{number}.crt"


def _refuse_missing_keys(wanted: Sequence[Issued]) -> None:
    lacking = [each for each in wanted if not _key_file(each).exists()]
    if lacking:
        files = ", ".join(str(_key_file(each)) for each in lacking)
        again = ", ".join(repr(each.name) for each in lacking)
        raise PkiError(f"{files}: missing on this machine. Revoke {again} and issue it again, or name the others.")


def _refuse_missing_key(wanted: Issued) -> None:
    if not _key_file(wanted).exists():
        raise PkiError(f"{_key_file(wanted)} is missing. Bring it back, or revoke the certificate and issue it again.")


def _key_file(issued: Issued) -> Path:
    return Path(issued.folder) / f"{issued.kind}.key"


def _certificate_file(issued: Issued) -> Path:
    return Path(issued.folder) / f"{issued.kind}.crt"


def _is_unwritten(register: Register, newest: Issued) -> bool:
    """Whether there is a key, and no certificate or one from before a renewal. One from elsewhere stays."""
    if not _key_file(newest).exists():
        return False
    file = _certificate_file(newest)
    # Those that were revoked may have another key.
    of_key = [each for each in register.issued if each.name == newest.name and each.revoked_at is None]
    earlier = {each.certificate for each in of_key if each is not newest}
    return not file.exists() or file.read_text(errors="replace") in earlier


def _renew(folder: Path, register: Register, previous: Issued, days: int) -> Issued:
    target = Path(previous.folder)
    order = CertificateOrder(previous.name, previous.kind, previous.subject, target, previous.owner, days)
    issued = _sign(folder, register, order, public_key_of(previous.certificate))
    _write_certificate(issued)
    return issued


def _write_certificate(issued: Issued) -> None:
    write_file(_certificate_file(issued), issued.certificate, _PUBLIC, issued.owner)


def _sign(folder: Path, register: Register, order: CertificateOrder, public_key: EllipticCurvePublicKey) -> Issued:
    """Sign a certificate and store it in the register, before any file has it."""
    at, number = now(), register.authorities[order.kind][-1]
    until = at + timedelta(days=order.days)
    certificate = _read_authority(folder, order.kind, number).sign(public_key, order.subject, order.kind, at, until)
    issued = Issued(
        name=order.name, kind=order.kind, serial=f"{certificate.serial_number:X}",
        common_name=order.subject.common_name, hosts=order.subject.hosts, authority=number, issued_at=at,
        expires_at=certificate.not_valid_after_utc, folder=str(order.folder), owner=order.owner,
        certificate=certificate_pem(certificate),
    )  # fmt: skip
    register.issued.append(issued)
    write_register(folder, register)
    return issued


def _publish(folder: Path, register: Register, at: datetime) -> None:
    """Write what is trusted and what is revoked to the authorities' folder, and to all others of the register."""
    register.lists += 1
    write_register(folder, register)
    texts = {}
    for kind, numbers in register.authorities.items():
        authorities = {number: _read_authority(folder, kind, number) for number in numbers}
        texts[f"{kind}s.crt"] = "".join(certificate_pem(each.certificate) for each in authorities.values())
        texts[f"{kind}s.crl"] = "".join(
            each.revocation_list(_revoked(register, kind, number), register.lists, at)
            for number, each in authorities.items()
        )
    for target in {folder, *(Path(each.folder) for each in register.issued)}:
        if target.is_dir():
            for name, text in texts.items():
                write_file(target / name, text, _PUBLIC)


def _revoked(register: Register, kind: CertificateKind, number: int) -> dict[int, datetime]:
    return {
        int(each.serial, 16): each.revoked_at
        for each in register.issued
        if each.kind is kind and each.authority == number and each.revoked_at is not None
    }


def _write_authority(folder: Path, kind: CertificateKind, number: int, at: datetime) -> None:
    authority = new_authority(f"PlainSQL {kind}s {number}", at)
    file = authority_file(folder, kind, number)
    write_file(file.with_suffix(".key"), key_pem(authority.key), _SECRET)
    write_file(file, certificate_pem(authority.certificate), _PUBLIC)


def _read_authority(folder: Path, kind: CertificateKind, number: int) -> Authority:
    file = authority_file(folder, kind, number)
    try:
        return read_authority(file.read_text(), file.with_suffix(".key").read_text())
    except (OSError, ValueError) as error:
        raise PkiError(f"The authority {file} can't be used: {error}") from error
