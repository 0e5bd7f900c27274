"""Requests and clients over plain HTTP, for the nodes that tests start.

`httpx.get` and `httpx.Client()` load the certificates of all public authorities first, which takes longer than the
request. These take the same arguments and trust no authority, so that HTTPS fails with them:

    plain_http.get(f"http://127.0.0.1:{port}/health").status_code
    with plain_http.client(headers=headers) as http: ...
"""

import ssl
from typing import Any

import httpx

# Generous: a test waits for an answer, and says itself if a late one is wrong.
_TIMEOUT_S = 30

_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def get(url: str, **arguments: Any) -> httpx.Response:
    return request("GET", url, **arguments)


def post(url: str, **arguments: Any) -> httpx.Response:
    return request("POST", url, **arguments)


def request(method: str, url: str, *, timeout: float = _TIMEOUT_S, **arguments: Any) -> httpx.Response:
    with client(timeout=timeout) as http:
        return http.request(method, url, **arguments)


def client(*, timeout: float = _TIMEOUT_S, **options: Any) -> httpx.Client:
    return httpx.Client(verify=_TRUSTS_NOBODY, trust_env=False, timeout=timeout, **options)


def async_client(*, timeout: float = _TIMEOUT_S, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=_TRUSTS_NOBODY, trust_env=False, timeout=timeout, **options)
