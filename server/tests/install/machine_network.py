"""A network for bare machines: a bridge in a namespace of its own, to which each machine has a cable.

    with made_network() as network:
        network.connect(machine, "10.0.0.1/24")

Nothing else is on it: neither this machine nor the internet.
"""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from server.tests.install.bare_machine import Machine


@dataclass(frozen=True)
class Network:
    """The bridge. `switch` is its namespace."""

    switch: str

    def connect(self, machine: Machine, address: str) -> None:
        """Gives a machine a cable, and its end of it an address."""
        plug = _plug(machine)
        pid = str(machine.first_pid)
        _ip("-n", self.switch, "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", pid)
        _ip("-n", self.switch, "link", "set", plug, "master", "lan", "up")
        machine.ask("ip", "address", "add", address, "dev", "eth0")
        machine.ask("ip", "link", "set", "eth0", "up")

    def disconnect(self, machine: Machine) -> None:
        """Pulls the cable. Nobody gets an error: packets are lost."""
        _ip("-n", self.switch, "link", "set", _plug(machine), "nomaster")


@contextmanager
def made_network() -> Iterator[Network]:
    """A network for the length of the block."""
    switch = f"plainsql-{secrets.token_hex(4)}"
    _ip("netns", "add", switch)
    try:
        _ip("-n", switch, "link", "add", "lan", "type", "bridge")
        _ip("-n", switch, "link", "set", "lan", "up")
        yield Network(switch)
    finally:
        _ip("netns", "delete", switch)


def _plug(machine: Machine) -> str:
    return f"p{machine.first_pid}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"
