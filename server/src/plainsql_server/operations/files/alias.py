"""The nginx configuration of the alias, which forwards to the data plane and redirects control routes.

    text = alias_config(Alias(["443"], ["10.0.0.11:8400"], "https://control.example"))

Everything except control routes goes to the data plane, so there is no second list of routes. nginx's own errors have
the same format as all other errors.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from plainsql_server.limits.tiers import TIERS

# Concurrent requests per address: more than browsers and applications need, and few enough that bodies of
# unauthenticated requests can't fill the disk.
_ADDRESS_REQUESTS = 256
# Idle connections to data planes that each worker of nginx keeps: to open one over TLS costs more than a request.
_KEPT_CONNECTIONS = 64
_KEPT_PER_UPSTREAM = 8
# Read timeout of nginx beyond the longest stream.
_BEYOND_THE_LONGEST_STREAM_S = 60

_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_ADDRESS = re.compile(rf"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>{_LABEL}(?:\.{_LABEL})*)):(?P<port>[1-9][0-9]{{0,4}})")
_LONGEST_NAME = 253
_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The certificate of the alias and its key."""

    cert_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class Alias:
    """An operator's options for the alias."""

    listen: Sequence[str]
    upstreams: Sequence[str]
    """Data plane processes, or nodes whose processes share a port, as host:port."""
    control_url: str
    server_name: str = "_"
    tls: TlsFiles | None = None
    upstream_ca_file: Path | None = None
    """If set, nginx uses TLS to the data planes, whose certificate must be valid for `upstream_name`."""
    upstream_name: str = "localhost"
    upstream_crl_file: Path | None = None
    """Revoked certificates of data planes. nginx does not start if it is missing."""


@dataclass(frozen=True, slots=True)
class _Error:
    """An error response that nginx generates."""

    place: str
    status: int
    code: str
    message: str
    outcome: str = "not_executed"
    hint: str | None = None
    retryable: bool = False


def alias_config(alias: Alias) -> str:
    """Return the configuration for the http block. Raises ValueError for an address that nginx would misread."""
    control_url = alias.control_url.rstrip("/")
    for address in (*alias.listen, *alias.upstreams, control_url, alias.server_name, alias.upstream_name):
        _refuse_strange(address)
    if urlsplit(control_url).scheme not in ("http", "https"):
        raise ValueError(f"The control plane's address is not a URL: {control_url}")
    text = files("plainsql_server.operations.files").joinpath("alias.conf").read_text(encoding="utf-8")
    for name, value in {
        "UPSTREAMS": "\n".join(f"    server {upstream} max_fails=1 fail_timeout=1s;" for upstream in alias.upstreams),
        "KEPT_CONNECTIONS": str(max(_KEPT_CONNECTIONS, _KEPT_PER_UPSTREAM * len(alias.upstreams))),
        "LISTEN": _listen(alias),
        "SERVER_NAME": alias.server_name,
        "MAX_BODY_BYTES": str(max(limits.request_bytes for limits in TIERS.values())),
        "ADDRESS_REQUESTS": str(_ADDRESS_REQUESTS),
        "SCHEME": "https" if alias.upstream_ca_file else "http",
        "CONNECT_TIMEOUT": "800ms" if alias.upstream_ca_file else "400ms",
        "UPSTREAM_TLS": _upstream_tls(alias),
        "READ_TIMEOUT_S": str(_longest_answer_s()),
        "CONTROL_URL": control_url,
        "ERRORS": "\n\n".join(_location(error, control_url) for error in _errors(control_url)),
    }.items():
        text = text.replace(f"@{name}@", value)
    return text


def is_address(text: str) -> bool:
    """Whether it is a host and a port: `10.0.0.11:8500`, `[fd00::1]:8500` or `node-1.example:8500`."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > _LAST_PORT:
        return False
    try:
        if found["v6"]:
            IPv6Address(found["v6"])
        elif found["name"].rpartition(".")[2].isdigit():
            # No name ends like this.
            IPv4Address(found["name"])
    except AddressValueError:
        return False
    return found["name"] is None or len(found["name"]) <= _LONGEST_NAME


def _longest_answer_s() -> int:
    return max(limits.stream_life_ms for limits in TIERS.values()) // 1000 + _BEYOND_THE_LONGEST_STREAM_S


def _listen(alias: Alias) -> str:
    lines = [f"    listen {address}{' ssl' if alias.tls else ''};" for address in alias.listen]
    if alias.tls:
        lines += [
            f"    ssl_certificate {_quoted(alias.tls.cert_file)};",
            f"    ssl_certificate_key {_quoted(alias.tls.key_file)};",
            "    ssl_protocols TLSv1.2 TLSv1.3;",
            "    ssl_session_cache shared:plainsql_alias:10m;",
        ]
    return "\n".join(lines)


def _upstream_tls(alias: Alias) -> str:
    if alias.upstream_ca_file is None:
        return ""
    return "\n".join([
        "        proxy_ssl_verify on;",
        f"        proxy_ssl_trusted_certificate {_quoted(alias.upstream_ca_file)};",
        f"        proxy_ssl_name {alias.upstream_name};",
        "        proxy_ssl_server_name on;",
        "        proxy_ssl_protocols TLSv1.2 TLSv1.3;",
        "        proxy_ssl_session_reuse on;",
        *([f"        proxy_ssl_crl {_quoted(alias.upstream_crl_file)};"] if alias.upstream_crl_file else []),
    ])  # fmt: skip


def _errors(control_url: str) -> list[_Error]:
    return [
        _Error("@control", 308, "control_route", f"This route is on the control plane, {control_url}.",
               hint=f"Send the request to {control_url}; browsers cannot follow this redirect to another origin."),
        _Error("= /_alias/malformed", 400, "malformed_request", "Invalid HTTP request received."),
        _Error("= /_alias/https", 400, "https_required",
               "This port serves HTTPS, and the request was sent as plain HTTP.", hint="Use https:// in the URL."),
        _Error("= /_alias/unknown", 404, "route_not_found", "There is no such route.", hint="GET / lists the routes."),
        _Error("= /_alias/method", 405, "method_not_allowed", "No route accepts this method."),
        _Error("= /_alias/too_large", 413, "request_too_large", "The request is larger than any tier allows."),
        _Error("= /_alias/too_many", 503, "connection_limit",
               f"Too many requests: an address may have {_ADDRESS_REQUESTS} in progress.", retryable=True),
        # The request may have reached the data plane. Perhaps only the response was lost.
        _Error("= /_alias/unavailable", 503, "data_plane_unavailable", "The data plane does not respond.",
               outcome="$plainsql_outcome", retryable=True),
    ]  # fmt: skip


def _location(error: _Error, control_url: str) -> str:
    """Return a location that sends an error body. `error_page` sets the status."""
    headers = [
        ("X-Request-Id", "$plainsql_request_id"), ("Server-Timing", '"alias;dur=$plainsql_ms"'),
        ("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"),
    ]  # fmt: skip
    if error.status == 308:
        # No CORS header: pages of other origins must call the control plane directly.
        headers.append(("Location", f"{control_url}$request_uri"))
    else:
        headers.append(("Access-Control-Allow-Origin", "$plainsql_allowed_origin"))
    if error.status == 503:
        headers.append(("Retry-After", "1"))
    lines = [
        "internal;",
        "default_type application/json;",
        *(f"add_header {name} {value} always;" for name, value in headers),
        f"return 200 '{_body(error)}';",
    ]
    inner = "\n".join(f"        {line}" for line in lines)
    return f"    location {error.place} {{\n{inner}\n    }}"


def _body(error: _Error) -> str:
    fields = {
        "code": error.code, "message": error.message, "hint": error.hint, "retryable": error.retryable,
        "retry_after_ms": 1_000 if error.status == 503 else None, "outcome": error.outcome,
    }  # fmt: skip
    encoded = msgspec.json.encode({name: value for name, value in fields.items() if value is not None}).decode()
    return f'{{"success":false,"error":{encoded},$plainsql_query_fields"request_id":"$plainsql_request_id"}}'


def _quoted(path: Path) -> str:
    text = str(path)
    if any(char in text for char in '"\\$\n\r'):
        raise ValueError(f"nginx cannot use this path: {text}")
    return f'"{text}"'


def _refuse_strange(text: str) -> None:
    if not text or any(char in text for char in " \t\r\n;{}\"'\\$#"):
        raise ValueError(f"nginx cannot use this address: {text!r}")
