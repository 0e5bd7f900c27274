"""Which ports a start uses, and which of them the next start uses again."""

import io
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plainsql_server.dev.kept_ports import USUAL_PORTS, settle_ports
from plainsql_server.dev.options import DevError
from plainsql_server.dev.ports import free_port
from plainsql_server.dev.screen import Screen

pytestmark = pytest.mark.unit

DATA, CONTROL = "--data-port", "--control-port"


@contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", port)):
        yield


class StartingPorts:
    """A state folder whose usual ports are free ones of this machine."""

    def __init__(self, path: Path) -> None:
        self.file = path / "ports.json"
        self.usual = {DATA: free_port(), CONTROL: free_port()}
        self.printed = ""

    def start(self, **given: int) -> dict[str, int]:
        output = io.StringIO()
        wanted = {DATA: given.get("data"), CONTROL: given.get("control")}
        ports = settle_ports(wanted, self.file, Screen(output), self.usual)
        self.printed = output.getvalue()
        return ports


@pytest.fixture
def folder(tmp_path: Path) -> StartingPorts:
    return StartingPorts(tmp_path)


def test_the_usual_ports_are_those_of_the_documentation() -> None:
    assert USUAL_PORTS == {"--data-port": 8400, "--control-port": 8401, "--alias-port": 8402}


def test_the_usual_ports_are_used(folder: StartingPorts) -> None:
    assert folder.start() == folder.usual
    assert folder.printed == ""


def test_a_port_in_use_is_replaced_and_the_other_one_kept(folder: StartingPorts) -> None:
    with taken(folder.usual[DATA]):
        first = folder.start()
    assert first[DATA] != folder.usual[DATA]
    assert first[CONTROL] == folder.usual[CONTROL]
    assert f"Port {folder.usual[DATA]} is in use. --data-port is {first[DATA]}" in folder.printed
    assert folder.start() == first
    assert folder.printed == ""


def test_a_kept_port_in_use_is_replaced_for_good(folder: StartingPorts) -> None:
    first = folder.start()
    with taken(first[CONTROL]):
        second = folder.start()
    assert second[CONTROL] != first[CONTROL]
    assert folder.start() == second


def test_given_ports_are_not_kept(folder: StartingPorts) -> None:
    port = free_port()
    assert folder.start(data=port)[DATA] == port
    assert folder.start(data=0)[DATA] not in (0, port, folder.usual[DATA])
    assert folder.start() == folder.usual


def test_a_given_port_goes_before_a_usual_one(folder: StartingPorts) -> None:
    ports = folder.start(control=folder.usual[DATA])
    assert ports[CONTROL] == folder.usual[DATA]
    assert ports[DATA] not in (folder.usual[DATA], folder.usual[CONTROL])


@pytest.mark.parametrize("content", ["{", "[8400]", json.dumps({DATA: "many"}), json.dumps({DATA: None})])
def test_an_invalid_file_is_named(folder: StartingPorts, content: str) -> None:
    folder.file.write_text(content)
    with pytest.raises(DevError, match=r"ports\.json"):
        folder.start()
