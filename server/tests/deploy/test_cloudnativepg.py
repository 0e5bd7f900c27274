"""The example of a cell with CloudNativePG has a cell's settings, and its rules admit nobody by a password.

There is no operator here. What it adds to the rules and the settings is written down below, as of version 1.30, and a
real PostgreSQL runs with the sum of both.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme
import yaml

from plainsql_server.dev.ports import free_port
from plainsql_server.engine.admin import provisioning
from plainsql_server.engine.pool.health import PROBE_ROLE
from plainsql_server.operations.files.cell import CellConfig, Tls
from plainsql_server.operations.files.sizing import GIB
from server.tests.control_plane.cell_state import yes
from server.tests.postgres import SUPERUSER, running_postgres
from server.tests.programs import need
from server.tests.tls_cell import TlsCell

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy/helm/examples/cloudnativepg.yaml"
README = EXAMPLE.parents[1] / "plainsql/README.md"
# Of a cell's settings: those that the operator sets itself or refuses to change.
_OPERATORS = {
    "jit_provider", "listen_addresses", "unix_socket_directories", "unix_socket_permissions", "ssl", "ssl_cert_file",
    "ssl_key_file", "ssl_ca_file",
}  # fmt: skip
# The operator's default is TLS 1.3, which is stricter than a cell's.
_STRICTER = {"ssl_min_protocol_version"}
_ADDED = {"wal_level": "replica", "max_slot_wal_keep_size": "16GB"}
# The operator's rules come before and after those of the manifest. Its local rule, for the user that PostgreSQL runs
# as, is left out: the tests' own user takes its place.
_BEFORE = (
    "hostssl postgres streaming_replica all cert map=cnpg_streaming_replica",
    "hostssl replication streaming_replica all cert map=cnpg_streaming_replica",
)
_AFTER = ("host all all all scram-sha-256",)
_MAP = "cnpg_streaming_replica streaming_replica streaming_replica"


def manifest() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["spec"]
    return spec


def of_a_cell() -> CellConfig:
    memory = int(manifest()["resources"]["limits"]["memory"].removesuffix("Gi"))
    return CellConfig(SUPERUSER, "/run/postgresql", Tls("a", "b", "c"), memory_bytes=memory * GIB)


@pytest.mark.unit
def test_its_parameters_are_those_of_a_cell_with_its_memory() -> None:
    wanted = {name: value for name, value in of_a_cell().settings().items() if name not in _OPERATORS | _STRICTER}
    assert manifest()["postgresql"]["parameters"] == wanted | _ADDED


@pytest.mark.unit
def test_its_rules_are_those_of_a_cell_and_end_with_a_rejection() -> None:
    assert manifest()["postgresql"]["pg_hba"] == [*of_a_cell().service_lines(), "host all all all reject"]


@dataclass(frozen=True, slots=True)
class OperatedConfig(CellConfig):
    """What PostgreSQL gets from the manifest and the operator together."""

    def postgresql_conf(self) -> str:
        parameters = {**self.settings(), **manifest()["postgresql"]["parameters"]}
        return "".join(f"{name} = '{value}'\n" for name, value in parameters.items())

    def pg_hba_conf(self) -> str:
        lines = (f"local all {SUPERUSER} trust", *_BEFORE, *manifest()["postgresql"]["pg_hba"], *_AFTER)
        return "".join(f"{line}\n" for line in lines)

    def pg_ident_conf(self, system_user: str = "postgres") -> str:
        del system_user
        return f"{_MAP}\n"


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCell]:
    folder, port = tmp_path_factory.mktemp("operated"), free_port()
    authority, of_this_cell = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    of_this_cell.cert_pem.write_to_path(folder / "ca.pem", append=True)
    for name, role, issuer in (
        ("admin", SUPERUSER, authority),
        ("data", "plainsql_data", authority),
        ("replication", "streaming_replica", of_this_cell),
    ):
        issued = issuer.issue_cert(f"{name}@test.example", common_name=role)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.key").chmod(0o600)

    def config(root: Path) -> CellConfig:
        issued = authority.issue_cert("localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(root / "server.pem")
        shutil.copy(folder / "ca.pem", root / "ca.pem")
        (root / "server.pem").chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(root / "server.pem", "postgres", "postgres")
        tls = Tls(f"{root}/server.pem", f"{root}/server.pem", f"{root}/ca.pem")
        return OperatedConfig(SUPERUSER, str(root), tls, "localhost")

    # The wheel's PostgreSQL 18 knows no TLS.
    with running_postgres(config, port=port, major=15) as postgres:
        with psycopg.connect(f"host={postgres.socket_dir} port={port} user={SUPERUSER} dbname=postgres") as admin:
            for statement in manifest()["bootstrap"]["initdb"]["postInitSQL"]:
                if SUPERUSER not in statement:
                    admin.execute(statement)
        yield TlsCell(folder, port)


@pytest.mark.full
async def test_no_password_opens_it_and_the_planes_certificates_do(cell: TlsCell) -> None:
    await provisioning.prepare_cell(cell.conninfo("admin"), SUPERUSER)
    names = provisioning.new_names()
    await provisioning.create_database(cell.conninfo("admin"), SUPERUSER, names, "s", yes)
    with cell.connect(names.owner_role, names.database, "data") as tenant:
        tenant.execute(f"alter role {names.owner_role} password 'mine'")
    cell.connect(PROBE_ROLE, "postgres", "data").close()
    own = f"host=localhost port={cell.port} user={names.owner_role} dbname={names.database} password=mine"
    for mode, reason in (("require", "requires a valid client certificate"), ("disable", r"pg_hba\.conf rejects")):
        with pytest.raises(psycopg.OperationalError, match=reason):
            psycopg.connect(f"{own} sslmode={mode} sslcert=/nowhere")
    with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
        cell.connect(SUPERUSER, "postgres", "data")


@pytest.mark.full
async def test_the_operators_replication_works_beside_a_prepared_cell(cell: TlsCell) -> None:
    await provisioning.prepare_cell(cell.conninfo("admin"), SUPERUSER)
    # For pg_rewind.
    cell.connect("streaming_replica", "postgres", "replication").close()
    psycopg.connect(cell.conninfo("replication"), user="streaming_replica", replication="true").close()
    for certificate in ("data", "admin"):
        with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
            cell.connect("streaming_replica", "postgres", certificate)


@pytest.mark.full
async def test_a_host_that_replicates_can_open_customers_databases_of_this_cell(cell: TlsCell) -> None:
    """What the README says: PostgreSQL 15 can't tell the certificates of its authorities apart here."""
    await provisioning.prepare_cell(cell.conninfo("admin"), SUPERUSER)
    names = provisioning.new_names()
    await provisioning.create_database(cell.conninfo("admin"), SUPERUSER, names, "s", yes)
    cell.connect(names.owner_role, names.database, "replication").close()


@pytest.mark.full
def test_no_other_cell_accepts_the_certificate_for_replication(tmp_path: Path) -> None:
    need("openssl", "bash")
    text = README.read_text().partition("## A cell with CloudNativePG")[2]
    lines = textwrap.dedent(text.partition("```sh\n")[2].partition("   ```")[0])
    own = f'plainsql-server() {{ "{sys.executable}" -m plainsql_server "$@"; }}\n'
    subprocess.run(["bash", "-e", "-c", own + lines], cwd=tmp_path, check=True, capture_output=True)
    (of_the_cell,) = re.findall(r"secret generic cell-1-clients --from-file=ca.crt=(\S+)", text)
    assert verifies(tmp_path, of_the_cell, "replication")
    assert verifies(tmp_path, of_the_cell, "data")
    assert verifies(tmp_path, "pki/clients.crt", "data")
    assert not verifies(tmp_path, "pki/clients.crt", "replication")


def verifies(folder: Path, authorities: str, name: str) -> bool:
    command = ["openssl", "verify", "-CAfile", authorities, "-purpose", "sslclient", f"{name}/client.crt"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode == 0
