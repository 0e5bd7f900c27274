"""The files of a cell of several machines: the sample is what the command writes, and holds what every cell holds."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from plainsql_server.cli import main
from plainsql_server.engine.pool.address import Address, hosts_of
from plainsql_server.operations.files.cell import CellConfig, Tls
from plainsql_server.operations.files.sizing import GIB
from server.tests.postgres import SUPERUSER

pytestmark = pytest.mark.unit

SAMPLE = Path(__file__).resolve().parents[3] / "deploy/cell-ha"
NODES = ("--node", "a=10.0.0.1", "--node", "b=10.0.0.2", "--node", "c=10.0.0.3")


def write(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(
        main, ["cell", "ha-files", str(folder), "--name", "eu-1", "--admin-role", SUPERUSER, *options]
    )


def read(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".md"]
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def test_the_sample_is_what_the_command_writes(tmp_path: Path) -> None:
    done = write(tmp_path, *NODES, "--memory-gib", "24")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == (
        "host=10.0.0.1,10.0.0.2,10.0.0.3 port=5432,5432,5432 target_session_attrs=primary"
    )  # fmt: skip
    assert read(tmp_path) == read(SAMPLE)


def test_servers_of_an_ha_cell_are_configured_like_any_cell() -> None:
    heading, comment, text = (SAMPLE / "a/patroni.yml").read_text().split("\n", 2)
    assert heading.startswith("# Written by PlainSQL.")
    assert comment == "# Connections and locks are for 24 GiB of memory: 1536 connections for customers."
    config = json.loads(text)
    own, shared = config["postgresql"], config["bootstrap"]["dcs"]
    cell = CellConfig(
        SUPERUSER,
        "/run/postgresql",
        Tls(*(f"/etc/plainsql/{name}" for name in ("node.crt", "node.key", "clients.crt"))),
        memory_bytes=24 * GIB,
    )
    # Patroni takes the addresses to listen on from another place.
    listening = {"listen_addresses": own["listen"].partition(":")[0]}
    settings = {**shared["postgresql"]["parameters"], **own["parameters"], **listening}
    # Patroni allows no fewer workers.
    assert {**cell.settings(), "max_worker_processes": "2"}.items() <= settings.items()
    # Patroni ignores these in a machine's own parameters: all machines must have the same.
    for name, value in (("max_connections", "1596"), ("max_locks_per_transaction", "81")):
        assert shared["postgresql"]["parameters"][name] == value
        assert name not in own["parameters"]
    lines = cell.pg_hba_conf().splitlines()[1:]
    assert [line for line in own["pg_hba"] if line in lines] == lines
    assert set(cell.pg_ident_conf().splitlines()[1:]) <= set(own["pg_ident"])
    assert shared["synchronous_mode_strict"] is True
    assert "default_transaction_isolation" not in settings, "standbys refuse SERIALIZABLE, and are never promoted then"
    # Whatever other certificates there are, the roles that copy everything are the machines' alone.
    first = own["pg_hba"].index("hostssl all +plainsql_tenants 0.0.0.0/0 trust clientcert=verify-ca")
    for role in ("plainsql_replication", "plainsql_rewind"):
        assert own["pg_hba"].index(f'hostssl all "{role}" all reject') < first


@pytest.mark.parametrize(
    "nodes",
    [
        ("a=10.0.0.1", "b=10.0.0.2"),
        ("a=10.0.0.1", "b=10.0.0.2", "c=10.0.0.3", "d=10.0.0.4"),
        ("a=10.0.0.1", "a=10.0.0.2", "c=10.0.0.3"),
        ("a=10.0.0.1", "b", "c=10.0.0.3"),
        ("../a=10.0.0.1", "b=10.0.0.2", "c=10.0.0.3"),
    ],
)
def test_invalid_sets_of_machines_are_rejected(nodes: tuple[str, ...], tmp_path: Path) -> None:
    done = write(tmp_path, *(word for node in nodes for word in ("--node", node)))
    assert done.exit_code == 2
    assert read(tmp_path) == {}


@pytest.mark.parametrize(
    ("conninfo", "hosts"),
    [
        ("host=/run/x port=5433", [{"host": "/run/x", "port": "5433"}]),
        ("host=a,b", [{"host": "a"}, {"host": "b"}]),
        ("host=a,b port=5433", [{"host": "a", "port": "5433"}, {"host": "b", "port": "5433"}]),
        ("host=a,b port=1,2", [{"host": "a", "port": "1"}, {"host": "b", "port": "2"}]),
        ("", [{}]),
    ],
)
def test_each_host_of_a_connection_string_is_distinguished(conninfo: str, hosts: list[dict[str, str]]) -> None:
    assert hosts_of(conninfo) == hosts
    assert len(Address(conninfo, "d", "r").conninfos(5_000)) == len(hosts)
