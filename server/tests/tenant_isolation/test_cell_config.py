"""The files that a cell runs with: a real PostgreSQL started with them, and who can log in to it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from plainsql_server.cli import main
from plainsql_server.engine.admin import provisioning
from plainsql_server.engine.pool.health import PROBE_ROLE
from plainsql_server.operations.files.cell import CellConfig, Tls
from plainsql_server.operations.files.machine_memory import machine_memory_bytes
from plainsql_server.operations.files.placing import with_checksum
from plainsql_server.operations.files.sizing import GIB
from server.tests.control_plane.cell_state import yes
from server.tests.postgres import SUPERUSER, Postgres, running_postgres
from server.tests.tls_cell import TlsCell, running_tls_cell, running_with_certificates

SAMPLE = Path(__file__).resolve().parents[3] / "deploy/cell"


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCell]:
    with running_tls_cell(tmp_path_factory.mktemp("tls")) as running:
        yield running


async def test_only_the_planes_certificates_can_log_in(cell: TlsCell) -> None:
    await provisioning.prepare_cell(cell.conninfo("admin"), SUPERUSER)
    names = provisioning.new_names()
    await provisioning.create_database(cell.conninfo("admin"), SUPERUSER, names, "s", yes)
    with cell.connect(names.owner_role, names.database, "data") as tenant:
        tenant.execute("create table t as select 1 as one")
        # It could log in by this, if anything asked for a password.
        tenant.execute(f"alter role {names.owner_role} password 'mine'")
    for user, certificate in (
        (SUPERUSER, "data"),
        (names.owner_role, None),
        (names.owner_role, "outsider"),
        (SUPERUSER, "outsider"),
    ):
        with pytest.raises(psycopg.OperationalError):
            cell.connect(user, names.database if user != SUPERUSER else "postgres", certificate)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(cell.conninfo(None), user=names.owner_role, dbname=names.database, password="mine")
    with pytest.raises(psycopg.OperationalError, match=r"no encryption|no pg_hba"):
        psycopg.connect(f"host=localhost port={cell.port} sslmode=disable user={names.owner_role} dbname=postgres")


async def test_a_data_planes_certificate_opens_tenants_roles_alone(cell: TlsCell) -> None:
    await provisioning.prepare_cell(cell.conninfo("admin"), SUPERUSER)
    others = {
        "monitor": "SUPERUSER",
        "copier": "REPLICATION",
        "maker": "CREATEROLE",
        "postgres": "SUPERUSER",
        "any": "",
    }
    with cell.connect(SUPERUSER, "postgres", "admin") as admin:
        for role, attribute in others.items():
            admin.execute(f'CREATE ROLE "{role}" LOGIN {attribute}')
    for role in others:
        with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
            cell.connect(role, "postgres", "data")
    with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
        psycopg.connect(cell.conninfo("data"), user="copier", dbname="postgres", replication="true")
    cell.connect(PROBE_ROLE, "postgres", "data").close()


async def test_a_backups_role_can_log_in(cell: TlsCell) -> None:
    await provisioning.prepare_cell(cell.conninfo("admin"), SUPERUSER)
    names = provisioning.new_names()
    await provisioning.create_database(cell.conninfo("admin"), SUPERUSER, names, "s", yes)
    async with provisioning.admin_connection(cell.conninfo("admin"), SUPERUSER, names.database) as admin:
        await provisioning.create_backup_role(admin, names.owner_role)
    with cell.connect(provisioning.backup_role_of(names.owner_role), names.database, "data") as backup:
        backup.execute(f"SET ROLE {names.owner_role}")


def test_the_commands_of_the_readme_make_certificates_with_ecdsa_keys(tmp_path: Path) -> None:
    section = (SAMPLE / "README.md").read_text().partition("## Certificates")[2]
    commands = section.partition("```sh\n")[2].partition("```")[0]
    program = f'plainsql-server() {{ "{sys.executable}" -m plainsql_server "$@"; }}\n'
    subprocess.run(["bash", "-e", "-c", program + commands], cwd=tmp_path, check=True, capture_output=True)
    for name in ("pki/clients", "pki/servers", "cell/server", "control/client", "data/client"):
        key = x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes()).public_key()
        assert isinstance(key, EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    for name, copy in (("server.crt", "server.pem"), ("server.key", "server.key"), ("clients.crt", "ca.pem")):
        shutil.copy(tmp_path / "cell" / name, tmp_path / copy)
    with running_with_certificates(tmp_path) as cell:
        address = f"host=cell-1.example hostaddr=127.0.0.1 port={cell.port} sslmode=verify-full"
        own = f"{tmp_path}/%s"
        files = (
            f"sslrootcert={own}/servers.crt sslcrl={own}/servers.crl sslcert={own}/client.crt sslkey={own}/client.key"
        )
        conninfo = f"{address} {files} user={SUPERUSER} dbname=postgres"
        with psycopg.connect(conninfo.replace("%s", "control")) as admin:
            assert admin.pgconn.ssl_in_use
        with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
            psycopg.connect(conninfo.replace("%s", "data"))


def test_the_sample_is_what_the_command_writes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plainsql_server", "cell", "files", str(tmp_path), "--admin-role", SUPERUSER]
    options = ["--memory-gib", "24", "--program", "/opt/plainsql/bin/plainsql-server"]
    subprocess.run([*command, *options], check=True, capture_output=True)
    assert _texts(tmp_path) == {name: text for name, text in _texts(SAMPLE).items() if name != "README.md"}


def _texts(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("role", ['a"b', "a\nb"])
def test_a_name_with_special_characters_for_the_files_is_rejected(role: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cell", "files", str(tmp_path), "--admin-role", role])
    assert result.exit_code == 2


def test_without_an_option_the_files_are_for_this_machines_memory(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cell", "files", str(tmp_path), "--admin-role", SUPERUSER])
    assert result.exit_code == 0, result.output
    own = CellConfig(
        SUPERUSER, "/run/postgresql", Tls("server.crt", "server.key", "clients.crt"),
        memory_bytes=machine_memory_bytes(),
    )  # fmt: skip
    assert (tmp_path / "conf.d/plainsql.conf").read_text() == with_checksum(own.postgresql_conf())


@pytest.mark.parametrize("memory", ["0", "-1", "many"])
def test_a_cell_without_memory_is_rejected(memory: str, tmp_path: Path) -> None:
    arguments = ["cell", "files", str(tmp_path), "--admin-role", SUPERUSER, "--memory-gib", memory]
    assert CliRunner().invoke(main, arguments).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_server_starts_with_the_sizes_for_its_memory() -> None:
    def large(root: Path) -> CellConfig:
        return CellConfig(SUPERUSER, str(root), memory_bytes=24 * GIB)

    names = (
        "max_connections", "superuser_reserved_connections", "max_prepared_transactions", "max_locks_per_transaction",
        "max_pred_locks_per_transaction", "autovacuum_naptime", "huge_pages", "recovery_init_sync_method",
    )  # fmt: skip
    with running_postgres(large) as running, running.connect() as admin:
        in_force = {name: admin.execute(f"show {name}").fetchone() for name in names}
        shared_bytes = admin.execute("select pg_size_bytes(current_setting('shared_memory_size'))").fetchone()
    assert in_force == {
        "max_connections": ("1596",), "superuser_reserved_connections": ("10",), "max_prepared_transactions": ("64",),
        "max_locks_per_transaction": ("81",), "max_pred_locks_per_transaction": ("40",),
        "autovacuum_naptime": ("5min",), "huge_pages": ("try",), "recovery_init_sync_method": ("syncfs",),
    }  # fmt: skip
    # With the shared buffers of the tests, 16 MB: more connections do not make the lock table larger.
    assert shared_bytes is not None
    assert shared_bytes[0] < 128 * 1024**2


@pytest.fixture(scope="module")
def bounded() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


def test_a_statement_that_wants_all_memory_fails_alone(bounded: Postgres) -> None:
    hungry = "select count(*) from (select distinct repeat(g::text, 30000) from generate_series(1, 30000) g) as x"
    with bounded.connect() as other, bounded.connect() as greedy:
        started = other.execute("select pg_postmaster_start_time()").fetchone()
        greedy.execute("set work_mem = '100GB'")
        greedy.execute("set enable_sort = off")
        with pytest.raises(psycopg.errors.OutOfMemory):
            greedy.execute(hungry)
        assert greedy.execute("select 1").fetchone() == (1,)
        assert other.execute("select pg_postmaster_start_time()").fetchone() == started


def test_a_statement_that_fills_the_disk_with_temporary_files_fails_alone(bounded: Postgres) -> None:
    with bounded.connect() as greedy:
        greedy.execute("set temp_file_limit = '10MB'")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            greedy.execute("select g, repeat('x', 100) from generate_series(1, 1000000) g order by 2, 1 desc")


def test_jit_is_not_available_to_tenants(bounded: Postgres) -> None:
    with bounded.connect() as tenant:
        tenant.execute("set jit = on")
        assert tenant.execute("select pg_jit_available()").fetchone() == (False,)


def test_no_statement_gets_workers_whatever_it_sets(bounded: Postgres) -> None:
    with bounded.connect() as tenant:
        tenant.execute("create table wide as select g from generate_series(1, 100000) g")
        for setting in (
            "max_parallel_workers_per_gather = 64", "max_parallel_workers = 64", "parallel_setup_cost = 0",
            "parallel_tuple_cost = 0", "min_parallel_table_scan_size = 0", "max_parallel_maintenance_workers = 64",
        ):  # fmt: skip
            tenant.execute(f"set {setting}")
        plan = "".join(line for (line,) in tenant.execute("explain (analyze) select sum(g) from wide"))
        assert "Workers Planned" in plan
        assert "Workers Launched: 0" in plan
