"""`plainsql-server pki …`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.core.clock import now
from plainsql_server.operations.pki import lifecycle
from plainsql_server.operations.pki.authority import CertificateKind, Subject
from plainsql_server.operations.pki.lifecycle import CertificateOrder, Renewal
from plainsql_server.operations.pki.register import Issued, PkiError

_DAYS = 365
_FOLDER = "/etc/plainsql/pki"

_pki_option = click.option(
    "--pki", "folder", type=click.Path(file_okay=False, path_type=Path), default=_FOLDER, show_default=True,
    help="Folder of the authorities.",
)  # fmt: skip
_days_option = click.option(
    "--days", type=click.IntRange(1, 3650), default=_DAYS, show_default=True, help="How long it is valid."
)
_kind_argument = click.argument("kind", type=click.Choice([str(each) for each in CertificateKind]))


@dataclass(frozen=True, slots=True)
class _ListedCertificate:
    """A certificate and its state."""

    name: str
    kind: str
    state: str
    common_name: str
    hosts: tuple[str, ...]
    authority: int
    expires_at: datetime
    revoked_at: datetime | None
    folder: str
    serial: str

    @classmethod
    def of(cls, issued: Issued, newest: Issued) -> "_ListedCertificate":
        return cls(
            issued.name, issued.kind, _state(issued, newest), issued.common_name, issued.hosts, issued.authority,
            issued.expires_at, issued.revoked_at, issued.folder, issued.serial,
        )  # fmt: skip


def _state(issued: Issued, newest: Issued) -> str:
    if issued.revoked_at is not None:
        return "revoked"
    if issued.expires_at <= now():
        return "expired"
    return "in use" if issued is newest else "replaced"


@contextmanager
def _reported() -> Iterator[None]:
    """Report a failure as the other commands do, in one line."""
    try:
        yield
    except (PkiError, OSError, LookupError) as error:
        raise click.ClickException(" ".join(str(error).split())) from error


@click.group("pki")
def pki_command() -> None:
    """Issue, renew and revoke the certificates of planes and cells.

    There is one authority for client certificates, with which the planes log in to cells, and one for the certificates
    of servers. Keep their folder on a machine that customers' SQL never reaches, and back it up.
    """


@pki_command.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=_FOLDER)
def _init(folder: Path) -> None:
    """Make the two certificate authorities in FOLDER (default: /etc/plainsql/pki)."""
    with _reported():
        lifecycle.init(folder.absolute())
    remark(f"Made the authorities in {folder}. Back up this folder: without it, no certificate can be revoked.")


@pki_command.command("issue")
@click.argument("name")
@click.option("--client", "common_name", metavar="ROLE", help="Client certificate; the admin role's is for control.")
@click.option("--server", "hosts", multiple=True, metavar="HOST", help="Host name or address of a server; repeatable.")
@click.option(
    "--to", "target", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Folder for the certificate, its key, and the trusted authorities with their revocation lists.",
)  # fmt: skip
@click.option("--owner", metavar="USER", help="System user who may read the key, by name or number.  [default: you]")
@_days_option
@_pki_option
def _issue(
    *, name: str, common_name: str | None, hosts: tuple[str, ...], target: Path, owner: str | None, days: int,
    folder: Path,
) -> None:  # fmt: skip
    """Issue a certificate with a new key, and remember it as NAME.

    FOLDER gets client.crt and client.key or server.crt and server.key, and in either case clients.crt, clients.crl,
    servers.crt and servers.crl. If the machine that needs them is another one, copy them there.
    """
    if (common_name is None) == (not hosts):
        raise click.UsageError("Use either --client or --server.")
    kind = CertificateKind.SERVER if common_name is None else CertificateKind.CLIENT
    order = CertificateOrder(name, kind, Subject(common_name or hosts[0], hosts), target.absolute(), owner, days)
    with _reported():
        issued = lifecycle.issue(folder.absolute(), order)
    remark(f"Wrote {kind}.crt and {kind}.key to {target}. The certificate expires on {issued.expires_at:%Y-%m-%d}.")


@pki_command.command("renew")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Renew all certificates that are in use.")
@click.option(
    "--within-days", type=click.IntRange(min=0), metavar="DAYS", help="Renew all that expire within this time."
)
@_days_option
@_pki_option
def _renew(
    *, names: tuple[str, ...], everything: bool, within_days: int | None, days: int, folder: Path
) -> None:  # fmt: skip
    """Renew the certificates NAMES. Their keys stay, and the previous certificates stay valid until they expire.

    Reload the programs that use them: SIGHUP for PostgreSQL and the planes. To replace a key, revoke and issue.

    If a key is missing, NAMES and --all renew nothing. --within-days renews the others, lists what it could not renew,
    and ends with 1. It also writes certificates that an interrupted renewal did not write to their files.
    """
    if sum([bool(names), everything, within_days is not None]) != 1:
        raise click.UsageError("Use either NAMES, --all or --within-days.")
    folder = folder.absolute()
    with _reported():
        if within_days is not None:
            renewal = lifecycle.renew_due(folder, within_days, days)
        else:
            wanted = names or [each.name for each in lifecycle.in_use(folder)]
            renewal = Renewal(lifecycle.renew(folder, wanted, days), [])
    for each in renewal.renewed:
        remark(f"Renewed {each.name!r} in {each.folder}. It expires on {each.expires_at:%Y-%m-%d}.")
    if renewal.failures:
        raise click.ClickException("\n".join(renewal.failures))


@pki_command.command("revoke")
@click.argument("name")
@_pki_option
def _revoke(*, name: str, folder: Path) -> None:
    """Revoke all certificates of NAME, also if they have expired. The name can then be issued again.

    The revocation lists are brought up to date in all folders on this machine. Copy them to the others, and reload
    PostgreSQL on the cells. Open connections stay open: restart the program that had the key.
    """
    with _reported():
        revoked = lifecycle.revoke(folder.absolute(), name)
    remark(f"Revoked {len(revoked)} certificates of {name!r}. Now copy clients.crl and servers.crl to other machines"
           " and reload PostgreSQL on all cells.")  # fmt: skip


@pki_command.command("rotate")
@_kind_argument
@_pki_option
def _rotate(*, kind: str, folder: Path) -> None:
    """Add a new authority for client or server certificates. The previous one stays trusted.

    Bring clients.crt or servers.crt to all machines and reload PostgreSQL there. Then `pki renew --all` signs the
    certificates with the new authority, and `pki retire` ends the trust in the previous one.
    """
    with _reported():
        number = lifecycle.rotate(folder.absolute(), CertificateKind(kind))
    remark(f"Added authority {number} for {kind} certificates. Copy {kind}s.crt and {kind}s.crl to other machines.")


@pki_command.command("retire")
@_kind_argument
@_pki_option
def _retire(*, kind: str, folder: Path) -> None:
    """Stop trusting all but the newest authority for client or server certificates."""
    with _reported():
        retired = lifecycle.retire(folder.absolute(), CertificateKind(kind))
    remark(f"Retired authority {', '.join(map(str, retired))} for {kind} certificates. Copy {kind}s.crt and {kind}s.crl"
           " to other machines and reload PostgreSQL on all cells.")  # fmt: skip


@pki_command.command("list")
@_pki_option
@json_option
def _list(*, folder: Path, as_json: bool) -> None:
    """List every certificate that was issued, oldest first."""
    with _reported():
        issued = lifecycle.all_issued(folder.absolute())
    newest = {each.name: each for each in issued}
    columns = [
        "name", "kind", "state", "common_name", "hosts", "authority", "expires_at", "revoked_at", "folder", "serial",
    ]  # fmt: skip
    print_records([_ListedCertificate.of(each, newest[each.name]) for each in issued], columns, as_json=as_json)
