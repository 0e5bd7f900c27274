"""A peer on the loopback with scripted answers: what proxies, balancers and failing hosts do to a client.

Owns no meaning: each step takes one request and then answers with bytes, drips them, or hangs up.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Step = Callable[[socket.socket], None]


def answer(status: int, content: Any, **headers: str) -> Step:
    """A whole answer, as the service gives it, or with a text for content as a proxy gives its own."""
    kind, body = ("text/html", content) if isinstance(content, str) else ("application/json", json.dumps(content))
    fields = {"Content-Type": kind, "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return lambda peer: peer.sendall(f"HTTP/1.1 {status} x\r\n{head}\r\n{body}".encode())


def refusal(status: int, code: str, outcome: str = "not_executed", **fields: Any) -> Step:
    error = {"code": code, "message": f"It is {code}.", "retryable": True, "outcome": outcome, **fields}
    return answer(status, {"success": False, "error": error, "request_id": "req_scripted"})


def hang_up(peer: socket.socket) -> None:
    """The answer is lost."""
    peer.shutdown(socket.SHUT_RDWR)


def drip(peer: socket.socket) -> None:
    """An answer that never ends, a byte at a time, so that each read brings something."""
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    with contextlib.suppress(OSError):
        while True:
            peer.sendall(b" ")
            time.sleep(0.05)


@contextlib.contextmanager
def scripted(*steps: Step) -> Iterator[tuple[str, list[str]]]:
    """The address of the peer, and the first lines of the requests that it got. The last step is repeated."""
    requests: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = list(steps)

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(peer,), daemon=True).start()

        def talk(peer: socket.socket) -> None:
            with peer, contextlib.suppress(OSError):
                while data := _request(peer):
                    requests.append(data.partition("\r\n")[0])
                    step = left.pop(0) if len(left) > 1 else left[0]
                    step(peer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
        server.shutdown(socket.SHUT_RDWR)


def _request(peer: socket.socket) -> str:
    """One request, whole; empty where the client went away."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = peer.recv(65536)
        if not more:
            return ""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += peer.recv(65536)
    return (head + b"\r\n\r\n" + body).decode()
