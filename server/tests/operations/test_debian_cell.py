"""A cell by the book: a cluster as Debian's own programs make it, `cell init`, a restart, and who can log in then."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import trustme
from click.testing import CliRunner, Result

from plainsql_server.cli import main
from plainsql_server.cli.cell import files
from plainsql_server.cli.cell.commands import cell_command
from plainsql_server.dev.ports import free_port
from plainsql_server.operations.files.placing import PlacedFile, place_file
from plainsql_server.operations.setup.checks import check_cell_cluster
from plainsql_server.operations.setup.machine import Machine, SetupError
from server.tests.postgres import SUPERUSER

_KEPT = ".before-plainsql"
_PLACES = "select current_setting('data_directory'), current_setting('port')"


@dataclass(frozen=True)
class DebianCluster:
    """A cluster in the layout of Debian: configuration in one folder, data in another."""

    root: Path
    port: int

    @property
    def config(self) -> Path:
        return self.root / "etc/15/main"

    def run(self, program: str, *arguments: object) -> None:
        user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        subprocess.run(
            [program, "15", "main", *map(str, arguments)],
            check=True, cwd="/", timeout=60, stdout=subprocess.DEVNULL,
            env={**os.environ, "PG_CLUSTER_CONF_ROOT": str(self.root / "etc"), "LC_ALL": "C.UTF-8"},
            user=user.pw_uid if user else None, group=user.pw_gid if user else None, extra_groups=[] if user else None,
        )  # fmt: skip

    def options(self, admin_role: str = SUPERUSER) -> list[str]:
        return [
            str(self.config), "--admin-role", admin_role, "--socket-directory", str(self.root),
            "--cert-file", f"{self.root}/server.crt", "--key-file", f"{self.root}/server.key",
            "--client-ca-file", f"{self.root}/clients.crt", "--network", "127.0.0.1/32",
        ]  # fmt: skip

    def init(self, admin_role: str = SUPERUSER) -> Result:
        # Loaded before: the user postgres may not be able to read our files.
        assert cell_command.name == "cell"
        with as_postgres():
            return CliRunner().invoke(main, ["cell", "init", *self.options(admin_role), "--port", str(self.port)])

    def connect(self, user: str) -> psycopg.Connection:
        """Log in on the socket, as the system's user postgres."""
        with as_postgres():
            return psycopg.connect(f"host={self.root} port={self.port} user={user} dbname=postgres", autocommit=True)


@contextmanager
def as_postgres() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    user = pwd.getpwnam("postgres")
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def cluster() -> Iterator[DebianCluster]:
    # The path of a socket may have about 100 characters.
    made = DebianCluster(Path(tempfile.mkdtemp(prefix="plainsql-debian-")), free_port())
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    server = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    server.cert_chain_pems[0].write_to_path(made.root / "server.crt")
    server.private_key_pem.write_to_path(made.root / "server.key")
    authority.cert_pem.write_to_path(made.root / "clients.crt")
    (made.root / "server.key").chmod(0o600)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "postgres:postgres", made.root], check=True)
    made.run(
        "pg_createcluster", "--port", made.port, "--datadir", made.root / "data", "--socketdir", made.root,
        "--logfile", made.root / "log", "--", "--no-sync",
    )  # fmt: skip
    made.run("pg_ctlcluster", "start")
    try:
        yield made
    finally:
        made.run("pg_ctlcluster", "stop", "--mode", "immediate")
        shutil.rmtree(made.root)


def placed_until(last: str) -> Callable[[Path, str], PlacedFile]:
    """`place_file` that ends with an error after this file."""

    def place(path: Path, text: str) -> PlacedFile:
        placed = place_file(path, text)
        if path.name == last:
            raise OSError("no power")
        return placed

    return place


def test_a_new_debian_cluster_becomes_a_cell(cluster: DebianCluster) -> None:
    originals = {name: (cluster.config / name).read_text() for name in ("postgresql.conf", "pg_hba.conf")}
    owner = (cluster.config / "pg_hba.conf").stat()
    with cluster.connect("postgres") as before:
        places = before.execute(_PLACES).fetchone()
        before.execute("create role weak login")

    weak = cluster.init("weak")
    assert weak.exit_code == 1
    assert "is not a superuser" in weak.output
    assert not (cluster.config / "conf.d/plainsql.conf").exists()

    machine = Machine("sql.example", "/opt/plainsql/bin/plainsql-server", clusters=cluster.root / "etc")
    if os.geteuid() == 0:
        # `setup` would shut others out, and says whom. It leaves a cluster alone that is a cell already.
        with pytest.raises(SetupError, match="it has the role weak"):
            check_cell_cluster(machine)
    # The power fails in `cell init`, after the first file that keeps others out. PostgreSQL starts with it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "place_file", placed_until("pg_hba.conf"))
        assert f"Created the role '{SUPERUSER}'" in cluster.init().output
    cluster.run("pg_ctlcluster", "restart", "--mode", "immediate")
    check_cell_cluster(machine)
    made = cluster.init()
    assert made.exit_code == 0, made.output
    check_cell_cluster(machine)

    cluster.run("pg_ctlcluster", "restart", "--mode", "immediate")
    with cluster.connect(SUPERUSER) as admin:
        # Debian's own file still says where the cluster is.
        assert admin.execute(_PLACES).fetchone() == places
        assert admin.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() == (True,)
        assert admin.execute("show log_statement").fetchone() == ("none",)
        assert admin.execute("select count(*) from pg_file_settings where error is not null").fetchone() == (0,)
        assert admin.execute("show ssl_ca_file").fetchone() == (f"{cluster.root}/clients.crt",)
    with pytest.raises(psycopg.OperationalError, match="pg_hba"):
        cluster.connect("postgres")

    assert (cluster.config / "postgresql.conf").read_text() == originals["postgresql.conf"]
    assert (cluster.config / f"pg_hba.conf{_KEPT}").read_text() == originals["pg_hba.conf"]
    # Again, now by the admin role itself, and as root: the first copy stays, and PostgreSQL can still read its files.
    assert "exists" in cluster.init().output
    assert CliRunner().invoke(main, ["cell", "files", *cluster.options()]).exit_code == 0
    assert (cluster.config / f"pg_hba.conf{_KEPT}").read_text() == originals["pg_hba.conf"]
    for name in ("pg_hba.conf", "conf.d/plainsql.conf"):
        assert (cluster.config / name).stat().st_uid == owner.st_uid
    assert (cluster.config / "pg_hba.conf").stat().st_mode == owner.st_mode
