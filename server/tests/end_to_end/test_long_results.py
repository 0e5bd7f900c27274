"""Long results over HTTPS, parsed and encoded on threads and sent in parts: every byte, in order, on every way."""

import base64
import hashlib
import json
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from server.tests.end_to_end.wires import Wire
from server.tests.load import running_node
from server.tests.service import Service

# Each makes more than a megabyte, so that it is read in parts, and parsed and encoded on a thread.
VALUES = {
    "text": "repeat('1', 5000000)",
    "escapes": r"""repeat(E'a"\\\n\t\x01', 300000)""",
    "UTF-8": "repeat('aä€😀', 500000)",
    "jsonb": "to_jsonb(repeat('1', 3000000))",
    "JSON with line breaks": r"""(E'[1,\n' || repeat(E'2,\r\n', 300000) || '3]')::json""",
    "bytea": "convert_to(repeat('123ä', 500000), 'UTF8')",
    "array": "array_fill('a\"b'::text, array[100000])",
}


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def expected(value: object) -> object:
    """What JSON has for a value of psycopg's."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@pytest.fixture(scope="module")
def engine(service: Service) -> Iterator[psycopg.Connection]:
    with service.engine() as connection:
        yield connection


@pytest.mark.parametrize("kind", VALUES)
def test_a_long_value_arrives_as_postgresql_has_it(service: Service, engine: psycopg.Connection, kind: str) -> None:
    sql = f"select g, {VALUES[kind]} as value from generate_series(1, 2) g"
    rows = engine.execute(sql.encode()).fetchall()
    digests = [[row[0], digest(expected(row[1]))] for row in rows]
    answers: list[list[dict[str, Any]]] = [
        service.query(sql)["rows"],
        service.call("POST", "/v1/transaction", json={"statements": [sql, "select 1"]}).json()["results"][0]["rows"],
        _streamed(service, sql),
    ]
    for answer in answers:
        assert [[row["g"], digest(row["value"])] for row in answer] == digests


def _streamed(service: Service, sql: str) -> list[dict[str, Any]]:
    response = service.call("POST", "/v1/query", json={"sql": sql}, headers={"Accept": "application/x-ndjson"})
    lines = [json.loads(line) for line in response.text.split("\n") if line]
    return [line.get("row", line) for line in lines if "g" in line or "row" in line]


def test_many_rows_arrive_in_order(service: Service) -> None:
    rows = service.query("select g, repeat(chr(97 + g % 26), g % 700) as t from generate_series(1, 30000) g")["rows"]
    assert [row["g"] for row in rows] == list(range(1, 30_001))
    assert all(row["t"] == chr(97 + row["g"] % 26) * (row["g"] % 700) for row in rows)


def test_an_error_of_the_encoder_is_the_answer(service: Service) -> None:
    sql = "select set_config('client_encoding', 'latin1', true), repeat('ä', 2000000)"
    answer = service.post_query(sql).json()
    assert answer["error"]["code"] == "untranslatable_character"
    assert service.value("select 42") == 42


@pytest.fixture(scope="module")
def wire(service: Service) -> Iterator[Wire]:
    with running_node(service.directory_dsn) as node:
        opened = Wire(node.port, service.api_key)
        yield opened
        opened.close()


def test_pipelined_answers_keep_their_order_and_their_length(wire: Wire) -> None:
    sizes = [3_000_000, 1, 400_000, 2, 600_000]
    bodies = [wire.bytes_of({"sql": f"select repeat('x', {size}) as t"}) for size in sizes]
    wire.send(b"".join(bodies))
    answers = [json.loads(wire.answer()[1]) for _ in sizes]
    assert [len(answer["rows"][0]["t"]) for answer in answers] == sizes
    # The connection goes on.
    assert json.loads(wire.query({"sql": "select 1 as one"})[1])["rows"] == [{"one": 1}]


def test_an_old_client_gets_all_of_it_and_then_the_end(wire: Wire) -> None:
    request = wire.bytes_of({"sql": "select repeat('x', 3000000) as t"}).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with socket.create_connection(("127.0.0.1", wire.port), timeout=30) as connection:
        connection.sendall(request)
        received = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    assert int(length[1]) == len(body)
    assert len(json.loads(body)["rows"][0]["t"]) == 3_000_000


def test_an_answer_under_way_is_sent_to_its_end_when_the_process_stops(service: Service, wire: Wire) -> None:
    with running_node(service.directory_dsn) as node:
        with socket.create_connection(("127.0.0.1", node.port), timeout=60) as connection:
            connection.sendall(wire.bytes_of({"sql": "select repeat('x', 20000000) as t"}))
            first = connection.recv(1 << 16)
            node.process.send_signal(signal.SIGTERM)
            received = first + b"".join(iter(lambda: connection.recv(1 << 20), b""))
        node.process.wait(60)
    body = received.partition(b"\r\n\r\n")[2]
    assert len(json.loads(body)["rows"][0]["t"]) == 20_000_000
