"""The guide to a cell on three machines: what its first steps make is complete, and good for both ends of a connection.

`test_three_machines.py` follows the whole guide, but takes too long for the gate.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from server.tests.install.guide import read_guide
from server.tests.programs import need

_NODES = ("a", "b", "c")
_FILES = {
    "patroni.yml", "etcd.yml", "node.crt", "node.key", "nodes.crt", "clients.crt", "replication.crt", "replication.key",
    "plainsql-etcd.service", "plainsql-patroni.service",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first steps were followed."""
    need("openssl", "bash")
    made = tmp_path_factory.mktemp("guide")
    commands = read_guide("A cell on three machines").to_first_answer
    start = next(place for place, each in enumerate(commands) if each.startswith("mkdir"))
    end = next(place for place, each in enumerate(commands) if each.startswith("for node"))
    own = f'plainsql-server() {{ "{sys.executable}" -m plainsql_server "$@"; }}\n'
    authorities = "plainsql-server pki init /etc/plainsql/pki\n"
    text = (authorities + "\n".join(commands[start : end + 1])).replace(
        "--to /etc", "--pki /etc/plainsql/pki --to /etc"
    )
    text = text.replace("/root/eu-2", f"{made}/eu-2").replace("/etc/plainsql", f"{made}/etc")
    ended = subprocess.run(["bash", "-e", "-c", own + text], capture_output=True, text=True, cwd=made, check=False)
    assert ended.returncode == 0, ended.stderr
    return made / "eu-2"


def test_each_machine_gets_all_its_files(folder: Path) -> None:
    for node in _NODES:
        assert {file.name for file in (folder / node).iterdir()} == _FILES


@pytest.mark.parametrize("purpose", ["sslserver", "sslclient"])
def test_machines_can_connect_to_each_other(folder: Path, purpose: str) -> None:
    for node in _NODES:
        verify = ["openssl", "verify", "-CAfile", "nodes.crt", "-purpose", purpose, f"{node}/node.crt"]
        ended = subprocess.run(verify, capture_output=True, text=True, cwd=folder, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
