"""What is at the edges of HTTP: spoken over a plain socket, because no client library would send it."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from server.tests.service import Service


def spoken(service: Service, request: bytes) -> bytes:
    """All that comes back until the service closes the connection or says nothing for a second."""
    address = urlsplit(service.data_url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 80), timeout=30) as connection:
        connection.sendall(request)
        answer = connection.recv(1 << 20)
        connection.settimeout(1.0)
        try:
            while chunk := connection.recv(1 << 20):
                answer += chunk
        except TimeoutError:
            return answer
    return answer


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("path", [b"/", b"/health"])
def test_head_is_get_without_a_body(plain_service: Service, path: bytes) -> None:
    head = spoken(plain_service, b"HEAD %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: 0" not in head
    assert body_of(head) == b""


def test_an_error_to_head_has_no_body_either(plain_service: Service) -> None:
    answer = spoken(plain_service, b"HEAD /v1/query HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405")
    assert body_of(answer) == b""


def test_requests_after_a_head_request_on_the_same_connection_are_answered_correctly(plain_service: Service) -> None:
    twice = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET /health?live HTTP/1.1\r\nHost: x\r\n\r\n"
    _, _, second = spoken(plain_service, twice).partition(b"\r\n\r\n")
    assert second.startswith(b"HTTP/1.1 200")
    assert json.loads(body_of(second))["status"] == "ok"


@pytest.mark.parametrize(
    "request_text",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Many: a\r\n" * 9_000 + b"\r\n",
    ],
    ids=["no HTTP", "length below zero", "two framings", "two lengths", "long address", "long header", "many headers"],
)
def test_malformed_requests_are_rejected_in_the_usual_error_shape(plain_service: Service, request_text: bytes) -> None:
    answer = spoken(plain_service, request_text)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in answer
    error = json.loads(body_of(answer))
    assert error["error"]["code"] == "malformed_request"
    assert error["request_id"].startswith("req_")


def test_an_escaped_path_is_the_same_path(plain_service: Service) -> None:
    assert spoken(plain_service, b"GET /he%61lth?live HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("name", ["a\0b", "x" * 100_000, "", "Main", "..", "main; drop"])
def test_a_name_that_no_database_can_have_is_unknown_and_not_repeated(service: Service, name: str) -> None:
    response = service.post_query("select 1", database=name)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "database_not_found"
    assert len(response.content) < 1_000


@pytest.mark.parametrize(
    "sql", ["slect 1", "", "explain select 1", "show all", "select 1", "drop table if exists nothing"]
)
def test_only_statements_that_can_store_code_mark_a_database_as_having_code(sql: str, service: Service) -> None:
    name = f"plain-{abs(hash(sql)):x}"
    service.customers.add_database(name)
    service.post_query(sql, database=name)
    service.call(
        "POST", "/v1/query", key=service.new_key("read"), json={"sql": "create view v as select 1", "database": name}
    )
    with service.engine("plainsql_directory") as directory:
        assert directory.execute("select plain from databases where name = %s", (name,)).fetchone() == (True,)


def test_creating_a_function_marks_the_database_as_having_code(service: Service) -> None:
    service.customers.add_database("with-code")
    service.query("create function f() returns int language sql as 'select 1'", database="with-code")
    with service.engine("plainsql_directory") as directory:
        assert directory.execute("select plain from databases where name = 'with-code'").fetchone() == (False,)
