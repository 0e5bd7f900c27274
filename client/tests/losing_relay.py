"""A relay of HTTP that can lose answers: the request is carried out, and the connection ends without a word.

async with LosingRelay("https://localhost:8401", ca_file) as relay:
    relay.losses = 1
...  # The next answer is lost.
"""

import asyncio
import re
import ssl
from types import TracebackType

import httpx2

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


class LosingRelay:
    """Passes each request on to a service, one for each connection, and loses the next `losses` answers.

    With `loses_if`, it loses only answers to requests whose body contains that.
    """

    def __init__(self, target: str, ca_file: str) -> None:
        self._target = target
        trust = ssl.create_default_context(cafile=ca_file)
        self._http = httpx2.AsyncClient(verify=trust, timeout=60, trust_env=False)
        self._server: asyncio.Server | None = None
        self.losses = 0
        self.loses_if = b""

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> "LosingRelay":
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        await self._http.aclose()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        answer = await self._answer(head, body)
        if self.losses > 0 and self.loses_if in body:
            self.losses -= 1
        else:
            content_type = answer.headers.get("content-type", "")
            replayed = "idempotency-replayed: true\r\n" if "idempotency-replayed" in answer.headers else ""
            writer.write(
                f"HTTP/1.1 {answer.status_code} -\r\ncontent-type: {content_type}\r\n{replayed}connection: close\r\n"
                f"content-length: {len(answer.content)}\r\n\r\n".encode()
                + answer.content
            )
        writer.close()

    async def _answer(self, head: bytes, body: bytes) -> httpx2.Response:
        first, *lines = head.decode().rstrip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name: value.strip() for name, _, value in (each.partition(":") for each in lines)}
        passed_on = {name: value for name, value in headers.items() if name.lower() not in {"host", "content-length"}}
        return await self._http.request(method, f"{self._target}{path}", headers=passed_on, content=body)
