"""Streams over HTTP/1.0: without chunks the end of the connection ends the body, and no failure may look like it."""

import json
import socket
from collections.abc import Iterator

import pytest

from server.tests.load import Node, running_node
from server.tests.service import Service

FAILS_LATE = (
    "select 1 / (3000 - n) as n, pg_sleep(case when n = 2999 then 0.3 else 0 end) from generate_series(1, 4000) n"
)
ENDS_WELL = "select n from generate_series(1, 4000) n"


@pytest.fixture(scope="module")
def node(service: Service) -> Iterator[Node]:
    with running_node(service.directory_dsn) as running:
        yield running


def answer_to(node: Node, key: str, sql: str, accept: str) -> bytes:
    """All that comes until the connection ends. Raises ConnectionResetError where it is reset."""
    body = json.dumps({"sql": sql}).encode()
    head = (
        f"POST /v1/query HTTP/1.0\r\nauthorization: Bearer {key}\r\naccept: {accept}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    answer = b""
    with socket.create_connection(("127.0.0.1", node.port), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        while chunk := connection.recv(1 << 16):
            answer += chunk
    return answer


def test_a_complete_csv_stream_ends_with_the_connection(service: Service, node: Node) -> None:
    answer = answer_to(node, service.api_key, ENDS_WELL, "text/csv")
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"\n4000\r\n")


def test_a_csv_stream_that_fails_is_reset(service: Service, node: Node) -> None:
    with pytest.raises(ConnectionResetError):
        answer_to(node, service.api_key, FAILS_LATE, "text/csv")


def test_a_failed_ndjson_stream_ends_with_an_error(service: Service, node: Node) -> None:
    answer = answer_to(node, service.api_key, FAILS_LATE, "application/x-ndjson")
    assert json.loads(answer.splitlines()[-1])["error"]["code"] == "division_by_zero"
