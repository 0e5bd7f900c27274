"""Ports that `dev` and the tests choose stay reserved for their users."""

import contextlib
import socket

import pytest

from plainsql_server.dev.options import DevError
from plainsql_server.dev.ports import choose_ports, free_port, free_ports

pytestmark = pytest.mark.unit
LOOPBACKS = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


def test_free_ports_differ_from_each_other() -> None:
    chosen = choose_ports({f"--{number}": 0 for number in range(50)})
    assert len(set(chosen.values())) == 50


def test_adjacent_ports_are_all_reserved() -> None:
    ports = free_ports(4)
    assert len(ports) == 4
    for port in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_one_port_for_two_is_refused() -> None:
    port = free_port()
    with pytest.raises(DevError, match=f"Port {port}"):
        choose_ports({"--data-port": port, "--control-port": port})


@pytest.mark.parametrize(("family", "address"), LOOPBACKS)
def test_a_chosen_port_is_reserved_for_a_server(family: socket.AddressFamily, address: str) -> None:
    port = free_port()
    with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
        other.bind((address, port))
    with socket.create_server((address, port), family=family):
        pass


def test_a_port_that_another_has_chosen_is_not_chosen() -> None:
    port = free_port()
    with pytest.raises(DevError, match=f"All ports from {port} to {port} are in use"):
        free_ports(1, among=range(port, port + 1))


def test_the_only_free_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    among = range(free - 8, free + 8)
    with contextlib.ExitStack() as taken:
        for port in among:
            # One that something else uses is as good.
            with contextlib.suppress(OSError):
                if port != free:
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
        assert free_ports(1, among) == range(free, free + 1)


def test_a_chosen_port_can_be_given() -> None:
    port = free_port()
    assert choose_ports({"--data-port": port}) == {"--data-port": port}
    assert choose_ports({"--data-port": port}) == {"--data-port": port}
