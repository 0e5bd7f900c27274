"""Chooses the ports that the planes listen on, and reserves them for a minute.

    port = free_port()
    ports = choose_ports({"--data-port": 0, "--control-port": 8401})
    ports = choose_ports({"--data-port": 0}, preferred={"--data-port": 8400})
    adjacent = free_ports(4)

A port must be free on both loopback addresses, because clients that connect to `localhost` may try either one first.

A server listens some time after its port was chosen. Until then, a connection that was just closed, and is in the state
TIME_WAIT, reserves the port: nothing else gets it by chance, and a server can listen on it if it sets SO_REUSEADDR, as
servers do.
"""

import contextlib
import errno
import secrets
import socket
from collections.abc import Mapping

from plainsql_server.dev.options import DevError

# Below the ports that Linux gives to outgoing connections.
FREE_PORTS = range(20_000, 32_000)
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


def free_port() -> int:
    """A free port, reserved. Raises DevError if there is none."""
    return free_ports(1)[0]


def free_ports(count: int, among: range = FREE_PORTS) -> range:
    """Adjacent free ports, reserved. Raises DevError if there are none."""
    with contextlib.ExitStack() as held:
        return _hold_free(held, count, among)


def choose_ports(wanted: Mapping[str, int], preferred: Mapping[str, int] | None = None) -> dict[str, int]:
    """A port for each option: the given one, or for 0 the preferred one if it is free, and otherwise any free one.

    Raises DevError if a given port is in use.
    """
    preferred = preferred or {}
    with contextlib.ExitStack() as held:
        # Hold all ports until all are chosen, so that no two options get the same one.
        given = {option: _hold_given(option, port, held) for option, port in wanted.items() if port}
        asked = {option: preferred.get(option) for option, port in wanted.items() if not port}
        found = {option: port for option, port in asked.items() if port and _hold_preferred(port, held)}
        free = {option: _hold_free(held, 1, FREE_PORTS)[0] for option in asked if option not in found}
    chosen = given | found | free
    return {option: chosen[option] for option in wanted}


def _hold_given(option: str, port: int, held: contextlib.ExitStack) -> int:
    try:
        # Lingering connections of an earlier run don't block it.
        _hold(port, held, shared=True)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise DevError(f"Port {port} ({option}) is in use. Choose another one, or omit {option}.") from None
        raise DevError(f"Can't use port {port} ({option}): {error.strerror}.") from None
    return port


def _hold_preferred(port: int, held: contextlib.ExitStack) -> bool:
    """Whether it is free; if so, it is held."""
    with contextlib.ExitStack() as attempt:
        try:
            _hold(port, attempt, shared=True)
        except OSError:
            return False
        held.enter_context(attempt.pop_all())
    return True


def _hold_free(held: contextlib.ExitStack, count: int, among: range) -> range:
    # From a random one on, so that programs that start at the same time seldom try the same.
    start = secrets.randbelow(len(among))
    for offset in range(len(among)):
        ports = _adjacent(among, start + offset, count)
        with contextlib.ExitStack() as attempt:
            try:
                for port in ports:
                    # Not one that is reserved for another.
                    _hold(port, attempt, shared=False)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            held.enter_context(attempt.pop_all())
            return ports
    wanted = "All ports" if count == 1 else f"All groups of {count} adjacent ports"
    raise DevError(f"{wanted} from {among.start} to {among.stop - 1} are in use.")


def _adjacent(among: range, index: int, count: int) -> range:
    first = among[index % (len(among) - count + 1)]
    return range(first, first + count)


def _hold(port: int, held: contextlib.ExitStack, *, shared: bool) -> None:
    """Listens on the port until `held` is closed, and reserves it for the time after that."""
    listeners = []
    for family, address in _LOOPBACKS:
        if family == socket.AF_INET6 and not _has_ipv6():
            continue
        listener = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)
        listener.bind((address, port))
        # The connections below must have it in any case, or they would keep the server from its port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        # With that option, only a listening socket holds the port.
        listener.listen(1)
        listeners.append(listener)
    for listener in listeners:
        _reserve(listener)


def _reserve(listener: socket.socket) -> None:
    """Leaves a connection in TIME_WAIT on the listener's port: it is on the side that closes first."""
    with socket.create_connection(listener.getsockname()[:2]):
        listener.accept()[0].close()


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
