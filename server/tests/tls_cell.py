"""A cell that is reached over the network with TLS, and the certificates that were made for it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import trustme
from trustme import KeyType

from plainsql_server.dev.ports import free_port
from plainsql_server.operations.files.cell import CellConfig, Tls
from server.tests.postgres import SUPERUSER, running_postgres


@dataclass(frozen=True)
class TlsCell:
    """A running one."""

    folder: Path
    port: int

    def conninfo(self, certificate: str | None) -> str:
        common = f"host=localhost port={self.port} sslrootcert={self.folder}/ca.pem"
        if certificate is None:
            return f"{common} sslmode=verify-full sslcert=/nowhere"
        name = f"{self.folder}/{certificate}"
        return f"{common} sslmode=verify-full sslcert={name}.pem sslkey={name}.key"

    def connect(self, user: str, database: str, certificate: str | None) -> psycopg.Connection:
        return psycopg.connect(self.conninfo(certificate), user=user, dbname=database, autocommit=True)


def _write(folder: Path, name: str, issued: trustme.LeafCert) -> None:
    issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    issued.private_key_pem.write_to_path(folder / f"{name}.key")
    (folder / f"{name}.key").chmod(0o600)


@contextmanager
def running_tls_cell(folder: Path, key_type: KeyType = KeyType.ECDSA) -> Iterator[TlsCell]:
    """A cell for the length of the block. Certificates: `admin`, `data`, and `outsider`, of an unknown authority.

    ECDSA is on the curve P-256, as `deploy/cell/README.md` has it.
    """
    authority, outsider = trustme.CA(key_type=key_type), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    _write(folder, "server", authority.issue_cert("localhost", "127.0.0.1", "::1", key_type=key_type))
    _write(folder, "admin", authority.issue_cert("admin@test.example", common_name=SUPERUSER, key_type=key_type))
    _write(folder, "data", authority.issue_cert("data@test.example", common_name="plainsql_data", key_type=key_type))
    _write(folder, "outsider", outsider.issue_cert("data@test.example", common_name=SUPERUSER))
    with running_with_certificates(folder) as cell:
        yield cell


@contextmanager
def running_with_certificates(folder: Path) -> Iterator[TlsCell]:
    """A cell with the `server.pem` and `server.key` of a folder, for clients whose authority is its `ca.pem`."""
    port = free_port()

    def config(root: Path) -> CellConfig:
        for name in ("server.pem", "server.key", "ca.pem"):
            shutil.copy(folder / name, root / name)
            (root / name).chmod(0o600)
            if os.geteuid() == 0:
                shutil.chown(root / name, "postgres", "postgres")
        tls = Tls(f"{root}/server.pem", f"{root}/server.key", f"{root}/ca.pem")
        return CellConfig(SUPERUSER, str(root), tls, "localhost", ("127.0.0.1/32", "::1/128"))

    # The wheel's PostgreSQL 18 knows no TLS.
    with running_postgres(config, port=port, major=15):
        yield TlsCell(folder, port)
