"""Sends the tools' requests to the data plane, with a caller's secret, and reads its answers.

    reply = await data_plane.post("/v1/query", Sent(secret, request_id, organization_id), {"sql": "select 1"})

Rows stay as the data plane wrote them, so that numbers keep their digits. Every request may be sent twice: reads, dry
runs, and commits with an idempotency key. One organization's calls can't take all connections from the others.
"""

import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx2
import msgspec

from plainsql_server.http.control.mcp.refusal import Lost, Refused, TooLarge
from plainsql_server.http.control.mcp.route import DataPlaneAddress
from plainsql_server.http.server.answers import Error

# What this process holds of one answer. A tool shows far less; the data plane cuts rows, but one row may be large.
_ANSWER_BYTES = 1024 * 1024
# More than the deadline of any request that the tools send.
_TIMEOUT_S = 90.0
_JSON = "application/json"


class Failed(Exception):
    """The data plane has answered with an error."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.code)
        self.error = error


class Sent(NamedTuple):
    """What goes with each request: the secret, and the id under which both planes log it."""

    secret: str
    request_id: str
    organization_id: str
    idempotency_key: str | None = None
    database: str | None = None


class Bounds(NamedTuple):
    """How much of the data plane one process uses at once."""

    connections: int = 100
    calls_per_organization: int = 10
    # How long a call waits for a connection.
    wait_s: float = 5.0


_BOUNDS = Bounds()


class ResultReply(msgspec.Struct):
    """One result, its rows as raw JSON."""

    columns: list[str] = []
    types: list[str] = []
    rows: list[msgspec.Raw] = []
    row_count: int = 0
    truncated: bool = False
    affected_rows: int = 0
    command: str | None = None
    notices: msgspec.Raw = msgspec.Raw(b"[]")


class Reply(ResultReply):
    """The fields of all answers that the tools use."""

    results: list[ResultReply] = []
    tables: list[msgspec.Raw] = []
    request: dict[str, Any] = {}
    error: Error | None = None
    # Whether a commit had taken effect before, with the same idempotency key.
    replayed: bool = False


_decoder = msgspec.json.Decoder(Reply)


class DataPlane:
    """A client of the data plane, with connections that are kept."""

    def __init__(self, address: DataPlaneAddress, bounds: Bounds = _BOUNDS) -> None:
        self._bounds = bounds
        # The organizations that have calls now, and how many.
        self._running = Counter[str]()
        self._client = httpx2.AsyncClient(
            base_url=address.url,
            verify=ssl.create_default_context(cafile=address.ca_file),
            timeout=httpx2.Timeout(_TIMEOUT_S, pool=bounds.wait_s),
            limits=httpx2.Limits(max_connections=bounds.connections),
            # No proxies and no credentials from the environment.
            trust_env=False,
        )

    async def post(self, path: str, sent: Sent, content: dict[str, Any]) -> Reply:
        """The answer to a POST. Raises Failed if it is an error, Lost if there is none or it is too long.

        Raises Refused if the process or the caller's organization has too many calls at once. Nothing was sent then.
        """
        return await self._send("POST", path, sent, msgspec.json.encode(content))

    async def get(self, path: str, sent: Sent, **options: str | None) -> Reply:
        """The answer to a GET. Raises as `post` does."""
        asked = urlencode({name: value for name, value in options.items() if value is not None})
        return await self._send("GET", f"{path}?{asked}" if asked else path, sent, None)

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, method: str, target: str, sent: Sent, body: bytes | None) -> Reply:
        with self._counted(sent.organization_id):
            return await self._send_counted(method, target, sent, body)

    @contextmanager
    def _counted(self, organization_id: str) -> Iterator[None]:
        most = self._bounds.calls_per_organization
        if self._running[organization_id] >= most:
            raise Refused(
                f"Your organization has {most} calls of tools running, the most at once. This one has not been run. "
                "Call again when one of them has finished."
            )
        self._running[organization_id] += 1
        try:
            yield
        finally:
            self._running[organization_id] -= 1
            if not self._running[organization_id]:
                del self._running[organization_id]

    async def _send_counted(self, method: str, target: str, sent: Sent, body: bytes | None) -> Reply:
        headers = {"Authorization": f"Bearer {sent.secret}", "X-Request-Id": sent.request_id, "Accept": _JSON}
        if body is not None:
            headers["Content-Type"] = _JSON
        if sent.idempotency_key is not None:
            headers["Idempotency-Key"] = sent.idempotency_key
        if sent.database is not None and body is None:
            headers["X-Database"] = sent.database
        for is_last in (False, True):
            try:
                return await self._exchange(method, target, headers, body)
            except httpx2.PoolTimeout as error:
                if is_last:
                    raise Lost("The data plane is unavailable.") from error
                raise Refused(
                    "The service has too many calls of tools at once. This one has not been run. "
                    "Call again in a moment."
                ) from error
            except httpx2.TransportError as error:
                # A kept connection may have been closed in the meantime.
                if is_last:
                    raise Lost("The data plane is unavailable.") from error
        raise AssertionError("the last attempt returns or raises")

    async def _exchange(self, method: str, target: str, headers: dict[str, str], body: bytes | None) -> Reply:
        async with self._client.stream(method, target, headers=headers, content=body) as response:
            content = bytearray()
            async for part in response.aiter_bytes():
                content += part
                if len(content) > _ANSWER_BYTES:
                    raise _too_large()
        if not response.headers.get("content-type", "").startswith(_JSON):
            raise Lost("The statement asks for a stream. Remove the hint /*+ STREAM */ from it.")
        reply = _decoder.decode(content)
        if reply.error is not None:
            raise Failed(reply.error)
        if response.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            raise Lost(f"The data plane answered with status {response.status_code}.")
        reply.replayed = "idempotency-replayed" in response.headers
        return reply


def _too_large() -> TooLarge:
    return TooLarge(
        f"The result is larger than {_ANSWER_BYTES} bytes. Select fewer columns, or shorten long values, for example "
        "with left(column, 200)."
    )
