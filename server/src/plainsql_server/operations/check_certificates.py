"""Doctor's checks of certificate files: the planes' own, and the type of the keys that cells are reached with.

The planes' certificate must be valid now and for some time, for the right names, and have its own key. `check_edge.py`
checks the certificates that clients see at the public URLs.
"""

import ipaddress
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import ExtensionOID
from psycopg.conninfo import conninfo_to_dict

from plainsql_server.core.clock import now
from plainsql_server.operations.findings import Finding, Target, broken, good, warning

# Long enough to notice the warning and act on it.
_RENEW_BEFORE = timedelta(days=21)
_RENEW = "Renew it and send SIGHUP to both planes, which then use the new one. No request fails."
_RSA = "has an RSA key: opening a connection takes a fifth to a third more processor time than with ECDSA"
_ECDSA = "Issue it with an ECDSA key on the curve P-256 when you renew it; deploy/cell/README.md has the commands."


async def certificates(target: Target) -> AsyncIterator[Finding]:
    """Check PLAINSQL_TLS_CERT_FILE and its key."""
    settings = target.settings
    if not settings.tls_cert_file or not settings.tls_key_file:
        yield good("certificate", "No certificate is set. The planes serve plain HTTP, for a proxy in front of them.")
        return
    file = Path(settings.tls_cert_file)
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, settings.tls_key_file)
    except (OSError, ValueError, ssl.SSLError) as error:
        yield broken(
            "certificate", f"{file} can't be used with its key: {error}.",
            "Set PLAINSQL_TLS_CERT_FILE to a PEM chain and PLAINSQL_TLS_KEY_FILE to its private key.",
        )  # fmt: skip
        return
    yield validity("certificate", str(file), certificate)
    for url in (settings.data_url, settings.control_url):
        host = urlsplit(url).hostname
        if host and not _names(certificate, host):
            yield broken(
                "certificate", f"{file} is not valid for {host}, the host of a public URL.",
                f"Get a certificate that names {host}, or change the URL to a name in this certificate.",
            )  # fmt: skip


def cell_keys(check: str, conninfo: str, cell_pem: str | None) -> Iterator[Finding]:
    """Advise against RSA keys, in the certificate of a cell and in the one that this machine presents to it."""
    if cell_pem is not None and _has_rsa_key(cell_pem.encode()):
        yield warning(check, f"The cell's certificate {_RSA}.", _ECDSA)
    own = conninfo_to_dict(conninfo).get("sslcert")
    # If it is missing here, the cell can't be reached, which is reported as that.
    if own and Path(str(own)).is_file() and _has_rsa_key(Path(str(own)).read_bytes()):
        yield warning(check, f"The service's certificate {own} {_RSA}.", _ECDSA)


def _has_rsa_key(pem: bytes) -> bool:
    try:
        return isinstance(x509.load_pem_x509_certificate(pem).public_key(), RSAPublicKey)
    except ValueError:
        # Connections over TLS work or fail without this check, and the one thing that it knows of is RSA.
        return False


def validity(check: str, name: str, certificate: x509.Certificate, fix: str = _RENEW) -> Finding:
    """Check that a certificate is valid now and for some time."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now() < begins:
        return broken(
            check, f"{name} is not valid before {begins:%Y-%m-%d %H:%M}Z.",
            "Wait until then, use the previous certificate, or correct this machine's clock.",
        )  # fmt: skip
    if now() >= ends:
        return broken(check, f"{name} expired on {ends:%Y-%m-%d %H:%M}Z: clients reject it.", fix)
    if ends - now() < _RENEW_BEFORE:
        return warning(check, f"{name} expires on {ends:%Y-%m-%d %H:%M}Z.", fix)
    return good(check, f"{name} is valid until {ends:%Y-%m-%d}.")


def _names(certificate: x509.Certificate, host: str) -> bool:
    try:
        listed = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return False
    assert isinstance(listed, x509.SubjectAlternativeName)
    try:
        return ipaddress.ip_address(host) in listed.get_values_for_type(x509.IPAddress)
    except ValueError:
        names = [name.lower() for name in listed.get_values_for_type(x509.DNSName)]
    host = host.lower()
    return host in names or f"*.{host.partition('.')[2]}" in names
