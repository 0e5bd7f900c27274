"""Requests that never become complete, or have no valid key: their memory is limited in sum, and others are served.

`PLAINSQL_TEST_UNFINISHED=10000` is the full size.
"""

import asyncio
import resource
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plainsql_server.dev.certificates import ensure_certificates
from plainsql_server.dev.ports import free_port
from server.tests.end_to_end.wires import counted
from server.tests.load import Client, Node, running_node, size
from server.tests.service import Service

UNFINISHED = size("PLAINSQL_TEST_UNFINISHED", 240)
LIMIT_MB = 2
# Besides what is counted, a connection with TLS has buffers: without the limit, these are 200 KB each.
GROWTH_BYTES = 20_000_000 + UNFINISHED * 20_000
LIMIT_S = 60
AT_ONCE = 20
BEGINNINGS = [
    b"POST /v1/query HTTP/1.1\r\nhost: x\r\ncontent-length: 60001\r\n\r\n" + b"x" * 60_000,
    b"POST /v1/query HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 60_000,
    b"POST /v1/query HTTP/1.1\r\nhost: x\r\nauthorization: Bearer svc_k_" + b"x" * 60_000,
]


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, ssl.SSLContext]:
    files = ensure_certificates(tmp_path_factory.mktemp("tls"))
    return Path(files.cert_file), Path(files.key_file), ssl.create_default_context(cafile=str(files.ca_file))


@pytest.fixture
def node(service: Service, trust: tuple[Path, Path, ssl.SSLContext]) -> Iterator[Node]:
    cert_file, key_file, _ = trust
    settings = {"tls_cert_file": cert_file, "tls_key_file": key_file, "metrics_port": free_port()}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, UNFINISHED + 4_000)), hard))
    with running_node(service.directory_dsn, unauthenticated_mb=LIMIT_MB, **settings) as running:
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def unfinished(node: Node, context: ssl.SSLContext) -> AsyncIterator[None]:
    """Connections from fifty addresses, each with a request that never becomes complete."""
    writers, numbers = list[asyncio.StreamWriter](), iter(range(UNFINISHED))

    async def send() -> None:
        for number in numbers:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", node.port, ssl=context, server_hostname="localhost",
                local_addr=(f"127.0.2.{number % 50 + 1}", 0),
            )  # fmt: skip
            writers.append(writer)
            writer.write(BEGINNINGS[number % len(BEGINNINGS)])

    try:
        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        yield
    finally:
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def test_unfinished_requests_hold_little_memory_and_a_client_with_a_key_is_served(
    service: Service, node: Node, trust: tuple[Path, Path, ssl.SSLContext]
) -> None:
    async with Client(node.port, service.api_key, trust=trust[2]) as client:
        assert (await client.query("select 1")).succeeded
        before_bytes = node.resident_bytes()
        async with unfinished(node, trust[2]):
            async with asyncio.timeout(LIMIT_S):
                while await made_way(node) < UNFINISHED * 0.8:
                    assert (await client.query("select $1::text", "x" * 30_000)).succeeded
            metrics = await asyncio.to_thread(counted, int(node.settings["PLAINSQL_METRICS_PORT"]))
            grown_bytes = node.resident_bytes() - before_bytes
            client.drop()
            assert (await client.query("select 1")).succeeded
    held_bytes = metrics["plainsql_unauthenticated_bytes"]
    print(f"{UNFINISHED} unfinished requests: {held_bytes:,.0f} bytes held, memory +{grown_bytes / 1e6:.1f} MB")
    assert 0 < held_bytes <= LIMIT_MB * 1_000_000
    assert grown_bytes < GROWTH_BYTES
    async with asyncio.timeout(LIMIT_S):
        while "connections made way" not in node.log.read_text():  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.05)


async def made_way(node: Node) -> float:
    metrics = await asyncio.to_thread(counted, int(node.settings["PLAINSQL_METRICS_PORT"]))
    return metrics["plainsql_unauthenticated_closed_total"]
