"""Hands requests over to the ordinary path, which goes on where the lane stopped.

A request whose statements were sent is handed over with its connection (`hand_over_sent`), one that has waited for its
slot with that (`hand_over_slot`), one without a slot with its start and its permit (`begin_again`), and one that must
fail with its error (`refuse`). Any other request is fed to the parser as it came.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from psycopg.pq.abc import PGresult

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.databases import Place
from plainsql_server.data_plane.head_start import HeadStart, SentStatement, SentTransaction
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.pool.pool import Lease, Pool
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Header


class HttpConnection(Protocol):
    """The part of a client's connection that is used here."""

    def take_over(self, request: Request) -> None:
        """Answers a request that the fast lane hands over."""


@dataclass(frozen=True, slots=True)
class LaneRequest:
    """A request, as far as the lane knows it."""

    path: str
    headers: dict[bytes, bytes]
    body: bytes
    request_id: bytes | None
    traceparent: bytes | None
    # None if it has no permit.
    rate_headers: tuple[Header, ...] | None
    began_s: float

    def request(self) -> Request:
        """The request as the ordinary path knows it."""
        headers = self.headers
        if self.traceparent is not None:
            headers = {**headers, b"traceparent": self.traceparent}
        request = Request("POST", self.path, b"", headers, body=self.body)
        if self.request_id is not None:
            request.id = self.request_id.decode()
        request.started_us = int(self.began_s * 1_000_000)
        request.began_s = self.began_s
        if self.rate_headers is not None:
            request.has_permit, request.rate_headers = True, self.rate_headers
        return request


@dataclass(frozen=True, slots=True)
class Admitted:
    """What belongs to a request that has its slot."""

    principal: Principal
    place: Place
    pool: Pool
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class LaneExchange:
    """What was sent, and the results that the lane has read."""

    connection: Connection
    results: list[PGresult | None]
    # The rows per chunk of each statement.
    chunk_rows: Sequence[int]
    leased_s: float
    # Whether the lane has read from the connection since.
    has_read: bool
    sent: SentStatement | SentTransaction


def hand_over_sent(protocol: HttpConnection, begun: LaneRequest, admitted: Admitted, exchange: LaneExchange) -> None:
    """Hands over a request whose statements were sent."""
    connection = exchange.connection
    connection.adopt(exchange.results, exchange.chunk_rows, has_read=exchange.has_read)
    lease = Lease.with_connection(admitted.pool, admitted.deadline, begun.began_s, connection, exchange.leased_s)
    _hand_over(protocol, begun, HeadStart(lease, admitted.principal, admitted.place, begun.began_s, exchange.sent))


def hand_over_slot(protocol: HttpConnection, begun: LaneRequest, admitted: Admitted) -> None:
    """Hands over a request that has its slot."""
    lease = Lease.with_slot(admitted.pool, admitted.deadline, begun.began_s)
    _hand_over(protocol, begun, HeadStart(lease, admitted.principal, admitted.place, begun.began_s, None))


def begin_again(protocol: HttpConnection, begun: LaneRequest) -> None:
    """Hands over a request that has no slot. Everything is looked up again, but it keeps its time and its permit."""
    protocol.take_over(begun.request())


def refuse(protocol: HttpConnection, begun: LaneRequest, error: ServiceError) -> None:
    """Hands over a request that failed before it had a result."""
    request = begun.request()
    request.refusal = error
    protocol.take_over(request)


def _hand_over(protocol: HttpConnection, begun: LaneRequest, head_start: HeadStart) -> None:
    request = begun.request()
    request.head_start = head_start
    protocol.take_over(request)
