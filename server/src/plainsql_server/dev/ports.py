"""Chooses the ports that the planes listen on.

A port must be free on both loopback addresses, because clients that connect to `localhost` may try either one first.
"""

import contextlib
import errno
import random
import socket

from plainsql_server.dev.options import DevError

_ATTEMPTS = 100
# Below the ports that Linux gives to outgoing connections: one of those could take a port between the choice here and
# the moment in which the plane listens on it.
_FREE_PORTS = range(20_000, 32_000)
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


def choose_ports(wanted: dict[str, int]) -> dict[str, int]:
    """A port for each option: the given one, or a free one for 0. Raises DevError if a given port is in use."""
    with contextlib.ExitStack() as held:
        # Hold all ports until all are chosen, so that no two options get the same one.
        given = {option: _hold_given(option, port, held) for option, port in wanted.items() if port}
        free = {option: _hold_free(held) for option, port in wanted.items() if not port}
    return given | free


def _hold_given(option: str, port: int, held: contextlib.ExitStack) -> int:
    try:
        _hold(port, held)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise DevError(f"Port {port} ({option}) is in use. Choose another one, or omit {option}.") from None
        raise DevError(f"Can't use port {port} ({option}): {error.strerror}.") from None
    return port


def _hold_free(held: contextlib.ExitStack) -> int:
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as attempt:
            try:
                port = _hold(random.choice(_FREE_PORTS), attempt)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            held.enter_context(attempt.pop_all())
            return port
    raise DevError("No free port found on this machine.")


def _hold(port: int, held: contextlib.ExitStack) -> int:
    for family, address in _LOOPBACKS:
        if family == socket.AF_INET6 and not _has_ipv6():
            continue
        listener = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
        # As servers do, so that lingering connections of an earlier run don't block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        # With that option, only a listening socket reserves the port.
        listener.listen(1)
        port = listener.getsockname()[1]
    return port


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
