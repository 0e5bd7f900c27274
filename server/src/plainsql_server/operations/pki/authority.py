"""Makes certificate authorities, certificates and revocation lists, with ECDSA keys on the curve P-256. No files.

authority = new_authority("clients 1", now)
key = new_key()
certificate = authority.sign(key.public_key(), Subject("plainsql_data", ()), CertificateKind.CLIENT, now, until)
authority.revocation_list({certificate.serial_number: now}, number=1, at=now)
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=3650)
# Certificates are valid a little earlier than now, for machines whose clocks are behind.
_CLOCK_SKEW = timedelta(minutes=5)


class CertificateKind(StrEnum):
    """What a certificate is for. Each kind has its own authority."""

    CLIENT = "client"
    """Planes log in to cells with it. The common name of the control plane's is the admin role."""
    SERVER = "server"
    """Cells, the directory and the planes show it to their clients. It is valid for names and addresses."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a certificate says: its common name, and the host names and addresses that it is valid for."""

    common_name: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def sign(
        self,
        public_key: ec.EllipticCurvePublicKey,
        subject: Subject,
        kind: CertificateKind,
        at: datetime,
        until: datetime,
    ) -> x509.Certificate:
        """Return a new certificate. It does not outlive the authority."""
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if kind is CertificateKind.CLIENT else ExtendedKeyUsageOID.SERVER_AUTH
        builder = (
            _builder(_name(subject.common_name), public_key, at, min(until, self.certificate.not_valid_after_utc))
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(self._identifier(), critical=False)
        )
        if subject.hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in subject.hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def revocation_list(self, revoked: Mapping[int, datetime], number: int, at: datetime) -> str:
        """Return the list of these serial numbers as PEM.

        It is valid as long as the authority: OpenSSL rejects every certificate if the list has expired, and a new one
        is brought to each machine by the operator, not fetched.
        """
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(at - _CLOCK_SKEW)
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(self._identifier(), critical=False)
        )
        for serial, revoked_at in sorted(revoked.items()):
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(revoked_at).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def new_authority(common_name: str, at: datetime) -> Authority:
    """Return a new authority. Two that are trusted at the same time need different names: OpenSSL finds them by it."""
    key, name = new_key(), _name(common_name)
    certificate = (
        _builder(name, key.public_key(), at, at + AUTHORITY_LIFE)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def read_authority(certificate_pem: str, key_pem: str) -> Authority:
    """Return the authority that was stored. Raises ValueError if it is not one of ours."""
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("The authority's key is not an ECDSA key.")
    return Authority(x509.load_pem_x509_certificate(certificate_pem.encode()), key)


def public_key_of(certificate_pem: str) -> ec.EllipticCurvePublicKey:
    """Return the public key of a certificate that an authority signed."""
    key = x509.load_pem_x509_certificate(certificate_pem.encode()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


def certificate_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, at: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
