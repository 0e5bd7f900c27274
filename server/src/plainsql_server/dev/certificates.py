"""The development CA and the server's certificate, kept across starts.

They are in `tls/` in the state folder: `ca.pem` for clients to trust (0644), `ca.key` and `server.key` (0600),
`server.pem` with its chain, and `expires`, the expiry time of the server's certificate. With `expires`, most starts
don't have to load a cryptography library. Certificates are issued only for this machine's own names.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plainsql_server.core import clock
from plainsql_server.dev.folder import write_public, write_secret
from plainsql_server.dev.options import DevError

NAMES = ("localhost", "127.0.0.1", "::1")
# Some clients reject server certificates that are valid for more than 398 days.
_LIFETIME = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files that servers and clients need."""

    ca_file: Path
    cert_file: Path
    key_file: Path


def ensure_certificates(directory: Path) -> Certificates:
    """The certificates in a folder. Issues new ones if they are missing or expire soon."""
    files = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    if not _usable(directory, files):
        _issue(directory, files)
    return files


def _usable(directory: Path, files: Certificates) -> bool:
    expires_file = directory / "expires"
    if not all(file.exists() for file in (files.ca_file, files.cert_file, files.key_file, expires_file)):
        return False
    try:
        expires = datetime.fromisoformat(expires_file.read_text().strip())
    except ValueError:
        return False
    return expires.astimezone(UTC) - clock.now() > _RENEW_BEFORE


def _issue(directory: Path, files: Certificates) -> None:
    try:
        # Imported here because it is slow (a good part of a second) and most starts don't need it.
        import trustme  # noqa: PLC0415
    except ImportError:
        raise DevError("TLS requires trustme: pip install 'plainsql-server[dev]', or use --no-tls.") from None
    ca_key_file = directory / "ca.key"
    if files.ca_file.exists() and ca_key_file.exists():
        ca = trustme.CA.from_pem(files.ca_file.read_bytes(), ca_key_file.read_bytes())
    else:
        ca = trustme.CA(organization_name="PlainSQL development")
        # Delete the certificate first and write it last, so a crash never leaves it next to another CA's key.
        files.ca_file.unlink(missing_ok=True)
        write_secret(ca_key_file, ca.private_key_pem.bytes().decode())
        write_public(files.ca_file, ca.cert_pem.bytes().decode())
    expires = clock.now() + _LIFETIME
    issued = ca.issue_cert(*NAMES, not_after=expires)
    (directory / "expires").unlink(missing_ok=True)
    write_secret(files.key_file, issued.private_key_pem.bytes().decode())
    write_public(files.cert_file, "".join(pem.bytes().decode() for pem in issued.cert_chain_pems))
    write_public(directory / "expires", expires.isoformat() + "\n")
