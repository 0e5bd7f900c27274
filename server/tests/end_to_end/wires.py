"""Keep-alive connections that show the bytes, and what a node counted: for tests that compare two ways to an answer."""

import json
import re
import socket
from dataclasses import dataclass, field
from typing import Any

from server.tests import plain_http


@dataclass
class Wire:
    """A keep-alive connection that shows the bytes."""

    port: int
    key: str
    head: str = ""
    path: str = "/v1/query"
    content_type: str = "application/json"
    _connection: socket.socket = field(init=False)
    _rest: bytes = b""

    def __post_init__(self) -> None:
        self._connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._connection.close()

    def bytes_of(self, body: dict[str, Any] | bytes) -> bytes:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: {self.content_type}\r\n{self.head}Content-Length: {len(sent)}\r\n\r\n"
        ).encode() + sent

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def answer(self) -> tuple[bytes, bytes]:
        """The head and the body of the next answer."""
        data = self._rest
        while b"\r\n\r\n" not in data:
            data += self._received()
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None, head
        while len(body) < int(length[1]):
            body += self._received()
        self._rest = body[int(length[1]) :]
        return head, body[: int(length[1])]

    def query(self, body: dict[str, Any] | bytes) -> tuple[bytes, bytes]:
        self.send(self.bytes_of(body))
        return self.answer()

    def _received(self) -> bytes:
        data = self._connection.recv(1 << 20)
        assert data, "the service closed the connection"
        return data


@dataclass
class SqlWire(Wire):
    """A connection on which requests come as from the Neon driver."""

    path: str = "/sql"
    content_type: str = "text/plain;charset=UTF-8"
    # As the path of the connection string has it.
    database: str = ""

    def bytes_of(self, body: dict[str, Any] | bytes) -> bytes:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: x\r\n"
            f"Neon-Connection-String: postgresql://app:{self.key}@api.example.com/{self.database}\r\n"
            f"{self.head}Content-Type: {self.content_type}\r\nContent-Length: {len(sent)}\r\n\r\n"
        ).encode() + sent


def same(answer: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """An answer without what differs from request to request."""
    head, body = answer
    for pattern, instead in (
        (rb"req_[0-9A-Za-z]+", b"req"), (rb"dur=[\d.]+", b"dur"), (rb"date: [^\r]+", b"date"),
        (rb"content-length: \d+", b"length"), (rb"ratelimit: [^\r]+", b"ratelimit"),
    ):  # fmt: skip
        head = re.sub(pattern, instead, head)
    body = re.sub(rb'"(total_us|exec_us|commit_us)":\d+', rb'"\1":0', body)
    body = re.sub(rb"within \d+ ms", b"within", body)
    return head, re.sub(rb"\b(req|txn)_[0-9A-Za-z]+", rb"\1", body)


def without_oids(answer: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """An answer without what differs between databases with the same content: the OIDs of their tables and types."""
    head, body = answer
    return head, re.sub(rb'"(tableID|dataTypeID)":\d{5,}', rb'"\1":0', body)


def counted(port: int) -> dict[str, float]:
    """The metrics of a node."""
    lines = plain_http.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def total(metrics: dict[str, float], name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(value for sample, value in metrics.items() if sample.partition("{")[0] == name)


def kept_by_lane(metrics: dict[str, float]) -> float:
    """How many requests the lane took and kept. One that it gave away only because the machine was slow counts, too."""
    slow = metrics.get('plainsql_lane_handed_over_total{reason="slow"}', 0.0)
    handed_over = total(metrics, "plainsql_lane_handed_over_total") - slow
    return total(metrics, "plainsql_lane_requests_total") - handed_over
