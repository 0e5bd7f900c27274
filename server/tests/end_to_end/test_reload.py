"""SIGHUP replaces a plane's processes, one or several: new certificates are used, and no request is lost."""

import asyncio
import signal
import socket
import ssl
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import trustme

from plainsql_server.dev.ports import free_ports
from server.tests import plain_http
from server.tests.consistency.faults import wait_until, workers_of
from server.tests.load import NEW_PROCESS, Client, NoAnswer, Node, running_node, size
from server.tests.processes import wait_for
from server.tests.service import Service

pytestmark = pytest.mark.chaos

RELOADS = size("PLAINSQL_TEST_RELOADS", 2)
CLIENTS = 4
_LIMIT_S = 150.0


class Certificates:
    """The files of a certificate, which can be renewed."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.cert_file, self.key_file = folder / "server.pem", folder / "server.key"
        self.trust = ssl.create_default_context()
        self._authority.configure_trust(self.trust)
        self.renew()

    @property
    def settings(self) -> dict[str, object]:
        return {"tls_cert_file": self.cert_file, "tls_key_file": self.key_file}

    def renew(self) -> None:
        issued = self._authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(self.key_file)
        issued.cert_chain_pems[0].write_to_path(self.cert_file)

    def is_used(self, port: int) -> bool:
        """Whether the process that accepts the next connection has the certificate of the file."""
        return ssl.get_server_certificate(("127.0.0.1", port)).strip() == self.cert_file.read_text().strip()


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@dataclass
class Asking:
    """A client that asks without a pause, on one connection or on a new one for each request."""

    client: Client
    keeps: bool
    answered: int = 0
    failed: list[str] = field(default_factory=list)

    async def run(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            try:
                answer = await self.client.query("select $1::int as n", self.answered)
                assert answer.value == self.answered
            except (NoAnswer, OSError) as error:
                self.failed.append(repr(error))
            self.answered += 1
            if not self.keeps:
                self.client.drop()
            await asyncio.sleep(0.02)
        self.client.drop()


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 2])
async def test_certificates_are_renewed_and_no_request_is_lost(
    service: Service, certificates: Certificates, workers: int
) -> None:
    own, metrics = free_ports(workers), free_ports(workers)
    settings = {"workers": workers, "worker_port": own[0], "metrics_port": metrics[0], **certificates.settings}
    with running_node(service.directory_dsn, NEW_PROCESS, **settings) as node:
        # Of several workers, the first one that listens makes the node ready.
        await wait_until(lambda: not any(is_refused(port) for port in own), _LIMIT_S)
        is_over = asyncio.Event()
        ports = [node.port, own[0]]
        clients = [
            Asking(Client(ports[number % 2], service.api_key, trust=certificates.trust), keeps=number % 4 < 2)
            for number in range(CLIENTS)
        ]
        tasks = [asyncio.create_task(client.run(is_over)) for client in clients]
        # A process without a parent becomes one at the first reload.
        for _ in range(RELOADS if workers == 1 else max(1, RELOADS // 2)):
            certificates.renew()
            before = set(workers_of(node))
            node.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(wait_for_new, node, certificates, before, [node.port, *own])
        await wait_until(lambda: all(has_metrics(port) for port in metrics), _LIMIT_S)
        is_over.set()
        await asyncio.gather(*tasks)
        assert [client.failed for client in clients if client.failed] == []
        assert all(client.answered > RELOADS for client in clients)
        assert await asyncio.to_thread(node.stop) == 0


def wait_for_new(node: Node, certificates: Certificates, before: set[int], ports: list[int]) -> None:
    """Waits until no process that accepts connections is an old one."""
    count = int(node.settings["PLAINSQL_WORKERS"])
    wait_for(lambda: len(set(workers_of(node)) - before) >= count, _LIMIT_S, node.log.read_text)
    # Processes share a port, and any of them may accept a connection.
    for port in ports * 3:
        wait_for(lambda port=port: certificates.is_used(port), _LIMIT_S, node.log.read_text)


def has_metrics(port: int) -> bool:
    try:
        return "plainsql_build_info" in plain_http.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    except httpx.TransportError:
        return False


def test_a_process_whose_successor_cannot_start_goes_on_and_reloads_later(
    service: Service, certificates: Certificates
) -> None:
    with running_node(service.directory_dsn, NEW_PROCESS, drain_ms=10, **certificates.settings) as node:
        used = certificates.cert_file.read_text()
        certificates.cert_file.write_text("no certificate")
        node.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "Not reloaded" in node.log.read_text(), _LIMIT_S, node.log.read_text)
        certificates.cert_file.write_text(used)
        assert certificates.is_used(node.port)
        certificates.renew()
        node.process.send_signal(signal.SIGHUP)
        wait_for(lambda: certificates.is_used(node.port), _LIMIT_S, node.log.read_text)
        assert len(workers_of(node)) == 1
        # It may be stopped before it has become a parent.
        assert node.stop() in (0, -signal.SIGTERM)


async def test_a_node_of_two_workers_that_stops_refuses_connections_it_will_not_answer(service: Service) -> None:
    with running_node(service.directory_dsn, workers=2, drain_ms=0) as node:
        async with node.client(service.api_key) as client:
            await client.send("select pg_sleep(600)")
            # The process that has it takes some seconds to stop. Its parent waits for it.
            node.process.send_signal(signal.SIGTERM)
            wait_for(lambda: is_refused(node.port), _LIMIT_S, node.log.read_text)
            assert node.process.poll() is None
            assert (await client.answer()).is_refusal()
        assert await asyncio.to_thread(node.process.wait, _LIMIT_S) == 0


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


# Longer than a stopping process waits for requests.
_READING_S = 4.5
_ANSWER_BYTES = 30_000_000
_SLICES = 30


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_client_that_is_reading_a_long_answer_when_the_process_stops_gets_all_of_it(
    service: Service, certificates: Certificates, has_tls: bool
) -> None:
    settings = certificates.settings if has_tls else {}
    with ExitStack() as stack:
        node = stack.enter_context(running_node(service.directory_dsn, drain_ms=0, **settings))
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
        if has_tls:
            connection = stack.enter_context(certificates.trust.wrap_socket(connection, server_hostname="localhost"))
        sql = f"select repeat('x', {_ANSWER_BYTES}) as long"
        head = f"POST /query HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {service.api_key}\r\n"
        head += f"content-type: text/plain\r\ncontent-length: {len(sql)}\r\n\r\n{sql}"
        connection.sendall(head.encode())
        received = len(connection.recv(65_536))
        node.process.send_signal(signal.SIGTERM)
        for number in range(_SLICES):
            # A slow client, which never stops reading.
            if number:
                time.sleep(_READING_S / _SLICES)
            received += read(connection, _ANSWER_BYTES // _SLICES)
        assert received > _ANSWER_BYTES - _SLICES
        read(connection, _ANSWER_BYTES)
        node.process.wait(_LIMIT_S)


def read(connection: socket.socket, count: int) -> int:
    """Reads so many bytes, or up to the end; how many it has read."""
    left = count
    while left and (got := len(connection.recv(min(left, 65_536)))):
        left -= got
    return count - left
