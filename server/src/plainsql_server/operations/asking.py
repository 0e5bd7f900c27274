"""A small HTTP client for the service's own routes.

    answer = await get(url, "/health", ca_file)

It has a short timeout, verifies TLS certificates, follows no redirects and sends no credentials.
"""

import asyncio
import http.client
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

_TIMEOUT_S = 5.0
_LARGEST_BYTES = 4 << 20


class AskingError(Exception):
    """The server did not answer, or its certificate is not trusted; the message says which."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object, or an empty one if it is not an object."""
        try:
            decoded = msgspec.json.decode(self.text)
        except msgspec.DecodeError:
            return {}
        return decoded if isinstance(decoded, dict) else {}


async def get(url: str, path: str, ca_file: Path | None = None) -> HttpAnswer:
    """Send a GET request and return the response. Raises AskingError."""
    return await asyncio.to_thread(_get, url, path, ca_file)


def _get(url: str, path: str, ca_file: Path | None) -> HttpAnswer:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AskingError(f"{url!r} is not an HTTP URL")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        ssl_context = ssl.create_default_context(cafile=ca_file)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S, context=ssl_context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, headers, response.read(_LARGEST_BYTES).decode(errors="replace"))
    except ssl.SSLCertVerificationError as error:
        raise AskingError(f"its certificate is rejected: {error.verify_message}") from error
    except (OSError, http.client.HTTPException) as error:
        raise AskingError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
