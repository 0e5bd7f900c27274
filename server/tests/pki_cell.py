"""Authorities as `plainsql-server pki` makes them, and a real cell that trusts them."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from click.testing import CliRunner
from cryptography import x509

from plainsql_server.cli import main
from plainsql_server.dev.ports import free_port
from plainsql_server.operations.files.cell import CellConfig, Tls
from server.tests.postgres import SUPERUSER, Postgres, running_postgres


@dataclass(frozen=True)
class Pki:
    """Authorities in a folder, and the command line on them."""

    root: Path

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        result = CliRunner().invoke(main, ["pki", *arguments, "--pki", str(self.root / "pki")])
        assert result.exit_code == exit_code, result.output
        return result.output

    def issue(self, name: str, *options: str, exit_code: int = 0) -> str:
        return self.run("issue", name, *options, "--to", str(self.root / name), exit_code=exit_code)

    def listed(self) -> list[dict[str, Any]]:
        result = CliRunner().invoke(main, ["pki", "list", "--json", "--pki", str(self.root / "pki")])
        listed: list[dict[str, Any]] = json.loads(result.stdout)
        return listed

    def states(self, name: str) -> list[str]:
        return [each["state"] for each in self.listed() if each["name"] == name]

    def certificate(self, path: str) -> x509.Certificate:
        return x509.load_pem_x509_certificate((self.root / path).read_bytes())


@dataclass(frozen=True)
class PkiCell:
    """A real cell with certificates from authorities of ours."""

    pki: Pki
    postgres: Postgres
    port: int

    def connect(self, certificate: str, user: str = SUPERUSER, database: str = "postgres") -> psycopg.Connection:
        """A connection over TLS."""
        own = self.pki.root / certificate
        return psycopg.connect(
            f"host=localhost port={self.port} sslmode=verify-full sslrootcert={own}/servers.crt"
            f" sslcrl={own}/servers.crl sslcert={own}/client.crt sslkey={own}/client.key user={user} dbname={database}"
        )

    def log_in(self, certificate: str, user: str = SUPERUSER) -> int:
        """The serial number of the certificate that the cell saw."""
        with self.connect(certificate, user) as connection:
            row = connection.execute("select client_serial from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
        assert row is not None
        return int(row[0])

    def is_refused(self, certificate: str, reason: str) -> bool:
        try:
            self.log_in(certificate)
        except psycopg.OperationalError as error:
            return reason in str(error)
        return False

    def is_admitted(self, certificate: str) -> bool:
        try:
            self.log_in(certificate)
        except psycopg.OperationalError:
            return False
        return True

    def update(self) -> None:
        """Bring it what it trusts, as an operator does, and reload."""
        root = Path(self.postgres.socket_dir)
        _give_files(self.pki, root)
        pid = int((root / "data/postmaster.pid").read_text().split("\n")[0])
        os.kill(pid, signal.SIGHUP)


def _give_files(pki: Pki, root: Path) -> None:
    for name in ("server.crt", "server.key", "clients.crt", "clients.crl"):
        shutil.copy(pki.root / "cell" / name, root / f"{name}.new")
        (root / f"{name}.new").chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(root / f"{name}.new", "postgres", "postgres")
        (root / f"{name}.new").rename(root / name)


@contextmanager
def running_pki_cell(pki: Pki) -> Iterator[PkiCell]:
    """A cell for the length of the block. Client certificates: `control` and `spare`, both for the admin role."""
    pki.issue("cell", "--server", "localhost")
    pki.issue("control", "--client", SUPERUSER)
    pki.issue("spare", "--client", SUPERUSER)
    port = free_port()

    def config(root: Path) -> CellConfig:
        _give_files(pki, root)
        tls = Tls(*(f"{root}/{name}" for name in ("server.crt", "server.key", "clients.crt", "clients.crl")))
        return CellConfig(SUPERUSER, str(root), tls, "localhost", ("127.0.0.1/32", "::1/128"))

    # The wheel's PostgreSQL 18 knows no TLS.
    with running_postgres(config, port=port, major=15) as postgres:
        yield PkiCell(pki, postgres, port)
