"""The alias: nginx with our configuration, before a real data plane."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from plainsql_server.dev.alias import write_config
from plainsql_server.dev.certificates import ensure_certificates
from plainsql_server.dev.ports import free_port
from plainsql_server.http.app.planes import CONTROL_PATHS
from plainsql_server.operations.files.alias import Alias, TlsFiles, alias_config
from server.tests import plain_http
from server.tests.alias import (
    CONTROL_URL,
    Upstream,
    found_nginx,
    running_alias,
    running_nginx,
    silent_port,
    streaming_upstream,
)
from server.tests.end_to_end.error_shape import check_shape, error_of
from server.tests.events import StreamClient
from server.tests.load import Activity, Client, new_tag
from server.tests.processes import wait_for
from server.tests.service import Service

SAMPLE = Path(__file__).resolve().parents[3] / "deploy/nginx/plainsql-alias.conf"

# How long a piece may take through the alias, on a busy machine.
_CHUNK_LIMIT_S = 5.0

BELOW = ["", "/one", "/one/restore", "?from=2026-01-01&to=2026-02-01"]


def alias_url(service: Service) -> str:
    return str(service.dev["alias_url"])


def through(service: Service, method: str, path: str, **arguments: object) -> httpx.Response:
    """A request to the alias, with the service's key."""
    headers = {"Authorization": f"Bearer {service.api_key}"} | arguments.pop("headers", {})  # type: ignore[operator]
    return service.http.request(method, alias_url(service) + path, headers=headers, **arguments)  # type: ignore[arg-type]


def durations(response: httpx.Response) -> dict[str, float]:
    entries = re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"])
    return {name: float(duration) for name, duration in entries}


def test_the_banner_names_the_alias_and_the_alias_serves_the_same_banner(service: Service) -> None:
    direct = service.call("GET", "/", key=None).json()
    assert direct["alias_url"] == alias_url(service)
    assert through(service, "GET", "/").json()["routes"] == direct["routes"]


def test_the_data_planes_routes_work_through_the_alias(service: Service) -> None:
    assert through(service, "POST", "/v1/query", json={"sql": "select 1 as one"}).json()["rows"] == [{"one": 1}]
    text = {"content": b"select 2 as two", "headers": {"Content-Type": "text/plain"}}
    assert through(service, "POST", "/query?row_format=array", **text).json()["rows"] == [[2]]
    transaction = through(service, "POST", "/v1/transaction", json={"statements": ["select 1", "select 2"]})
    assert transaction.json()["success"]
    assert through(service, "GET", "/health").json()["status"] == "ok"


def test_server_timing_shows_the_extra_hop_beside_what_the_data_plane_says(service: Service) -> None:
    shown = durations(through(service, "POST", "/v1/query", json={"sql": "select pg_sleep(0.2)"}))
    assert set(shown) == {"queue", "engine", "total", "alias"}
    # nginx reads its clock once in a while, to the millisecond.
    assert shown["alias"] >= shown["total"] - 5 > 190


def test_a_request_has_one_id_on_both_sides_of_the_alias(service: Service) -> None:
    kept = through(service, "GET", "/health?live", headers={"X-Request-Id": "req_chosen1234"})
    assert kept.headers["x-request-id"] == kept.json()["request_id"] == "req_chosen1234"
    made = through(service, "GET", "/health?live", headers={"X-Request-Id": "not ours"})
    assert re.fullmatch(r"req_[0-9a-f]{32}", made.headers["x-request-id"])
    assert made.json()["request_id"] == made.headers["x-request-id"]


def test_ids_made_for_requests_through_the_alias_are_in_the_order_of_time(service: Service) -> None:
    """Together with those of requests that went to the data plane directly."""
    ids = []
    for _ in range(5):
        ids.append(through(service, "GET", "/health?live").json()["request_id"])
        time.sleep(0.002)
        ids.append(service.call("GET", "/health?live").json()["request_id"])
        time.sleep(0.002)
    assert ids == sorted(ids)


def test_a_request_through_the_alias_is_logged_with_a_trace_id(service: Service) -> None:
    """nginx makes it, and shows it in its own errors, so that a request whose response is lost can be found."""
    made = through(service, "POST", "/v1/query", json={"sql": "select 1"}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", logged(service, made)["trace_id"])
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    kept = through(service, "POST", "/v1/query", json={"sql": "select 1"}, headers=headers).headers["x-request-id"]
    assert logged(service, kept)["trace_id"] == trace


def logged(service: Service, request_id: str) -> dict[str, Any]:
    """What the data plane has logged of a request."""
    lines: list[str] = []

    def is_there() -> bool:
        texts = [path.read_text() for path in service.folder.rglob("*.log") if "data" in path.name]
        lines[:] = [line for text in texts for line in text.splitlines() if request_id in line]
        return bool(lines)

    wait_for(is_there, 30, lambda: f"{request_id} is not in the log")
    line: dict[str, Any] = json.loads(lines[0])
    return line


@pytest.mark.parametrize("path", [path + below for path in CONTROL_PATHS for below in BELOW])
def test_a_control_route_is_answered_with_a_redirect_and_an_error_that_names_the_control_plane(
    service: Service, path: str
) -> None:
    for method in ("GET", "POST", "DELETE", "PATCH", "OPTIONS"):
        answer = through(service, method, path, headers={"Origin": "https://page.example"}, content=b"{}")
        error = error_of(answer, 308, "control_route")
        assert answer.headers["location"] == service.control_url + path
        assert service.control_url in error["message"]
        assert error["outcome"] == "not_executed"
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_client_that_follows_the_redirect_reaches_the_control_plane_with_its_method(service: Service) -> None:
    followed = through(service, "DELETE", "/v1/keys/none", follow_redirects=True)
    assert str(followed.url) == f"{service.control_url}/v1/keys/none"
    assert followed.request.method == "DELETE"


@pytest.mark.parametrize("path", ["/nothing", "/v1/keysx", "/v2/query", "/_alias/unknown", "/_alias/unavailable"])
def test_an_unknown_route_is_a_404_in_the_usual_error_shape(service: Service, path: str) -> None:
    error_of(through(service, "GET", path), 404, "route_not_found")


def test_a_body_over_the_largest_tiers_limit_is_refused_before_it_is_sent(plain_service: Service) -> None:
    address = urlsplit(alias_url(plain_service))
    with socket.create_connection(("127.0.0.1", address.port or 80), timeout=30) as connection:
        head = b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (64 * 1024 * 1024 + 1)
        connection.sendall(head)
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer


def test_a_method_that_nginx_rejects_has_the_usual_error_shape_without_nginxs_version(service: Service) -> None:
    answer = through(service, "TRACE", "/v1/query")
    error_of(answer, 405, "method_not_allowed")
    assert answer.headers["server"] == "nginx"


def test_no_secret_is_in_the_aliass_folder_or_log(service: Service) -> None:
    through(service, "POST", "/v1/keys", json={"secret": service.api_key})
    through(service, "TRACE", "/v1/query")
    texts = [file.read_text() for file in (service.folder / "alias").glob("*.conf")]
    texts.append((service.folder / "log" / "alias.log").read_text())
    assert not [text for text in texts if service.api_key in text]


def test_an_unavailable_data_plane_is_a_503_and_nothing_was_executed() -> None:
    with running_alias(free_port(), free_port()) as port:
        headers = {"Origin": "https://page.example"}
        answer = plain_http.post(f"http://127.0.0.1:{port}/v1/query", json={}, headers=headers)
    error = error_of(answer, 503, "data_plane_unavailable")
    assert (error["outcome"], error["retryable"], answer.headers["retry-after"]) == ("not_executed", True, "1")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert check_shape(answer)["rows"] == []


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/query"), ("GET", "/bench"), ("GET", "/capabilities/x"), ("GET", "/storage/test")]
)
async def test_a_data_plane_that_hangs_up_after_the_request_is_a_503_with_an_unknown_outcome(
    method: str, path: str
) -> None:
    """Also of routes that write although their method is GET: no other process gets the request."""
    received: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server, plain_http.async_client() as http:
        upstream_port = server.sockets[0].getsockname()[1]
        with running_alias(upstream_port, upstream_port) as port:
            answer = await http.request(method, f"http://127.0.0.1:{port}{path}")
    error = error_of(answer, 503, "data_plane_unavailable")
    assert (error["outcome"], len(received)) == ("unknown", 1)


async def test_a_machine_that_does_not_respond_fails_no_request() -> None:
    """Most processes are on a machine that has vanished: their connections are neither taken nor refused."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"{}"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, plain_http.async_client() as http:
        with ExitStack() as stack:
            silent = [stack.enter_context(silent_port()) for _ in range(8)]
            live = server.sockets[0].getsockname()[1]
            port = stack.enter_context(running_alias(*silent, live))
            for number in range(8):
                headers = {"X-Database": f"d{number}"}
                answered = await http.post(f"http://127.0.0.1:{port}/v1/query", json={}, headers=headers)
                assert (answered.status_code, answered.content) == (200, b"ok")


def test_an_address_with_many_incomplete_bodies_is_rejected() -> None:
    fewer = {"limit_conn plainsql_addresses 256": "limit_conn plainsql_addresses 2"}
    withheld = b"POST /v1/query HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n{"
    with running_alias(free_port(), instead=fewer) as port, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)).sendall(withheld)
        end_s, url = time.monotonic() + 30, f"http://127.0.0.1:{port}/v1/query"
        # A request counts when its head has come.
        while b"connection_limit" not in (answer := plain_http.post(url, json={})).content:
            assert time.monotonic() < end_s
        error = error_of(answer, 503, "connection_limit")
    assert (error["outcome"], error["retryable"], answer.headers["retry-after"]) == ("not_executed", True, "1")


async def chunks_in_step(port: int, upstream: Upstream, chunks: int) -> int:
    """How many pieces of a stream came through the alias, each of which was made only when all before it was here.

    The head comes before the first of them: nginx that gathers sends it with the first piece.
    """
    came = b""
    try:
        async with (
            plain_http.async_client(timeout=_CHUNK_LIMIT_S) as http,
            http.stream("POST", f"http://127.0.0.1:{port}/v1/query", json={"sql": "x"}) as response,
        ):
            upstream.wanted.release()
            async for part in response.aiter_raw():
                for _ in range(part.count(b"\n\n")):
                    upstream.wanted.release()
                came += part
    except httpx.ReadTimeout:
        # So that the stand-in comes to its end, too.
        for _ in range(chunks):
            upstream.wanted.release()
    return came.count(b"\n\n")


async def test_the_alias_passes_each_chunk_on_before_the_next_over_one_connection() -> None:
    async with streaming_upstream(chunks=10) as upstream:
        with running_alias(upstream.port) as port:
            for _ in range(3):
                upstream.wanted = asyncio.Semaphore(0)
                assert await chunks_in_step(port, upstream, 10) == 10
    assert upstream.connections == 1
    assert all(b"connection: close" not in head.lower() for head in upstream.request_heads)
    assert all(b" HTTP/1.1\r\n" in head for head in upstream.request_heads)


async def test_an_alias_that_buffers_chunks_is_detected() -> None:
    async with streaming_upstream(chunks=10) as upstream:
        with running_alias(upstream.port, instead={"proxy_buffering off": "proxy_buffering on"}) as port:
            assert await chunks_in_step(port, upstream, 10) == 0


# Each row waits until the sequence has its number. A transaction sees at once what others do with a sequence.
_IN_STEP = """
create function step(number bigint) returns bigint language plpgsql as $$
begin
    while (select last_value from steps) < number loop perform pg_sleep(0.01); end loop;
    return number;
end $$"""


async def test_a_real_streams_rows_pass_the_alias_one_by_one(plain_service: Service) -> None:
    port = urlsplit(alias_url(plain_service)).port or 0
    for statement in ("create sequence steps", _IN_STEP):
        plain_service.query(statement)
    types = []
    async with StreamClient(port, plain_service.api_key) as client:
        await client.send("select step(number) from generate_series(1, 4) number")
        await client.read_head()
        async for event in client.events():
            types.append(event.type)
            if event.type == "row":
                # The next row is made only now. A row that something on the way keeps would never come.
                number = types.count("row") + 1
                await asyncio.to_thread(plain_service.query, "select setval('steps', $1)", number)
    assert types == ["columns", "row", "row", "row", "row", "done"]


async def test_the_statement_of_a_client_that_disconnects_from_the_alias_is_cancelled(plain_service: Service) -> None:
    tag = new_tag()
    client = Client(urlsplit(alias_url(plain_service)).port or 0, plain_service.api_key)
    async with Activity.of(plain_service) as activity:
        await client.send(f"/* {tag} */ select pg_sleep(60)")
        await activity.begun(tag)
        client.drop()
        # It gives up long before the statement would end by itself.
        await activity.gone(tag, time.monotonic())


def sample() -> str:
    """What the operator's reference shows how to make."""
    return alias_config(
        Alias(
            listen=["443", "[::]:443"],
            upstreams=["10.0.0.11:8400", "10.0.0.12:8400", "10.0.0.13:8400"],
            control_url=CONTROL_URL,
            server_name="alias.example",
            tls=TlsFiles(Path("/etc/plainsql/alias.pem"), Path("/etc/plainsql/alias.key")),
            upstream_ca_file=Path("/etc/plainsql/ca.pem"),
            upstream_name="data.example",
        )
    )


def test_the_sample_in_deploy_is_what_the_command_prints_today() -> None:
    assert SAMPLE.read_text() == sample()


@pytest.mark.parametrize(("upstreams", "kept"), [(1, 64), (8, 64), (9, 72)])
def test_the_alias_keeps_some_connections_to_each_process(upstreams: int, kept: int) -> None:
    text = alias_config(Alias(["80"], [f"10.0.0.{number}:8500" for number in range(upstreams)], CONTROL_URL))
    assert f"    keepalive {kept};" in text


def test_the_alias_can_refuse_revoked_certificates_of_data_planes() -> None:
    text = alias_config(
        Alias(
            ["443"],
            ["10.0.0.11:8400"],
            CONTROL_URL,
            upstream_ca_file=Path("/ca"),
            upstream_crl_file=Path("/revoked.crl"),
        )
    )
    assert 'proxy_ssl_crl "/revoked.crl";' in text
    assert "proxy_ssl_crl" not in sample()


def test_nginx_takes_the_sample(service: Service) -> None:
    program = found_nginx()
    text = SAMPLE.read_text()
    for name, file in (("alias.pem", "server.pem"), ("alias.key", "server.key"), ("ca.pem", "ca.pem")):
        text = text.replace(f"/etc/plainsql/{name}", str(service.folder / "tls" / file))
    folder = Path(tempfile.mkdtemp(prefix="plainsql-alias-"))
    try:
        (folder / "nginx.conf").write_text(f"pid {folder}/pid; events {{}} http {{\n{text}\n}}")
        checked = subprocess.run(
            [program, "-t", "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder)
    assert checked.returncode == 0, checked.stderr


def test_plain_http_to_an_alias_with_tls_is_answered_with_an_error(tmp_path: Path) -> None:
    files, port = ensure_certificates(tmp_path), free_port()
    tls = TlsFiles(Path(files.cert_file), Path(files.key_file))
    write_config(tmp_path, Alias([f"127.0.0.1:{port}"], ["127.0.0.1:1"], CONTROL_URL, tls=tls))
    with running_nginx(tmp_path, port):
        error_of(plain_http.get(f"http://127.0.0.1:{port}/"), 400, "https_required")


@pytest.mark.parametrize("strange", ["https://x;}", "https://x y", "", "ftp://x", "https://x$uri", 'https://x"'])
def test_an_address_that_nginx_would_read_differently_is_refused(strange: str) -> None:
    with pytest.raises(ValueError, match=r"nginx cannot|not a URL"):
        alias_config(Alias(["80"], ["127.0.0.1:1"], strange))
