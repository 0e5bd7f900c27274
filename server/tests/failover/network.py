"""A network for machines that tests cut off from each other: namespaces, joined by two bridges.

Owns making and removing it, and the cut. The machines talk to each other on one bridge, and to the service on another,
so that a machine can lose its companions and not its clients. What is cut off gets no error: its packets are dropped.
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from server.tests.failover.ha_cell import NAMES, Place

# Set aside for tests of networks (RFC 2544): the machines' own, and that of the service.
_NETS = {"lan": "198.18", "wan": "198.19"}
_TEST_HOST = 254


@dataclass(frozen=True)
class Network:
    """The network of a cell's machines."""

    tag: str
    third: int

    @property
    def places(self) -> list[Place]:
        return [
            Place(
                self._address("lan", number),
                ["ip", "netns", "exec", self._machine(number)],
                self._address("wan", number),
            )
            for number in range(1, len(NAMES) + 1)
        ]

    @property
    def service_networks(self) -> list[str]:
        """From where the service connects."""
        return [f"{prefix}.{self.third}.0/24" for prefix in _NETS.values()]

    def cut_off(self, name: str) -> None:
        """The machine reaches none of the others from now on, nor they it. The service still does."""
        self._link(name, "nomaster")

    def join(self, name: str) -> None:
        self._link(name, "master", "lan")

    def vanish(self, name: str) -> None:
        """Nobody reaches the machine from now on."""
        self._link(name, "nomaster")
        self._link(name, "nomaster", net="wan")

    def come_back(self, name: str) -> None:
        self._link(name, "master", "lan")
        self._link(name, "master", "wan", net="wan")

    def _link(self, name: str, *how: str, net: str = "lan") -> None:
        _ip("-n", self._switch, "link", "set", f"{net}{NAMES.index(name) + 1}", *how)

    @property
    def _switch(self) -> str:
        return f"plainsql-{self.tag}-switch"

    def _machine(self, number: int) -> str:
        return f"plainsql-{self.tag}-{NAMES[number - 1]}"

    def _address(self, net: str, number: int) -> str:
        return f"{_NETS[net]}.{self.third}.{number}"

    def _make(self, stack: ExitStack) -> None:
        self._add_namespace(self._switch, stack)
        for net in _NETS:
            _ip("-n", self._switch, "link", "add", net, "type", "bridge")
            _ip("-n", self._switch, "link", "set", net, "up")
            # The test's own end.
            own = f"{net}-{self.tag}"
            self._add_cable(net, _TEST_HOST, "link", "add", own, "type", "veth")
            stack.callback(subprocess.run, ["ip", "link", "delete", own], check=False, stderr=subprocess.DEVNULL)
            _ip("address", "add", f"{self._address(net, _TEST_HOST)}/24", "dev", own)
            _ip("link", "set", own, "up")
        for number in range(1, len(NAMES) + 1):
            machine = self._machine(number)
            self._add_namespace(machine, stack)
            _ip("-n", machine, "link", "set", "lo", "up")
            for net in _NETS:
                self._add_cable(net, number, "-n", machine, "link", "add", net, "type", "veth")
                _ip("-n", machine, "address", "add", f"{self._address(net, number)}/24", "dev", net)
                _ip("-n", machine, "link", "set", net, "up")

    def _add_cable(self, net: str, number: int, *end: str) -> None:
        """A cable from some end to the bridge of a net."""
        plug = f"{net}{number}"
        _ip(*end, "peer", "name", plug, "netns", self._switch)
        _ip("-n", self._switch, "link", "set", plug, "master", net, "up")

    def _add_namespace(self, name: str, stack: ExitStack) -> None:
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "delete", name)


@contextmanager
def made_network() -> Iterator[Network]:
    """A network for the length of the block."""
    network = Network(secrets.token_hex(2), secrets.randbelow(200) + 1)
    with ExitStack() as stack:
        network._make(stack)
        yield network


def can_make_networks() -> bool:
    """Whether this process may make namespaces: root may, outside of most containers."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"plainsql-{secrets.token_hex(4)}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True)
    if made.returncode == 0:
        _ip("netns", "delete", name)
    return made.returncode == 0


def _ip(*arguments: str) -> None:
    command: Sequence[str] = ["ip", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
