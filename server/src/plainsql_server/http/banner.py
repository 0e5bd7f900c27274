"""GET / and GET /health: what this service is, and whether it can work.

Owns the banner's shape. Both are open to everyone, so they say nothing about any customer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from plainsql_server import VERSION
from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import ServiceError
from plainsql_server.http.readiness import Readiness
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response, json_response
from plainsql_server.http.routes import Route

Check = Callable[[], Awaitable[None]]
# The code of a failed check that requests do not suffer from.
DEGRADED = "degraded"
# How long an answer serves those who ask again: shorter than any balancer's interval.
_REMEMBERED_S = 0.5


@dataclass(frozen=True, slots=True)
class Urls:
    """The public addresses of the three hosts."""

    data_url: str
    control_url: str
    alias_url: str | None


class RouteEntry(msgspec.Struct, kw_only=True):
    """A route, as the banner lists it."""

    method: str
    path: str
    purpose: str


class BannerAnswer(msgspec.Struct, kw_only=True):
    """The answer of GET /."""

    service: str
    version: str
    routes: list[RouteEntry]
    docs: str | None
    data_url: str
    control_url: str
    alias_url: str | None
    request_id: str


class HealthAnswer(msgspec.Struct, kw_only=True):
    """The answer of GET /health. A check says ok, degraded, or the code of what is wrong."""

    status: Literal["ok", "degraded", "unavailable"]
    version: str
    uptime_s: int
    checks: dict[str, str]
    request_id: str


class Banner:
    """The two open routes of a plane."""

    def __init__(self, urls: Urls, checks: Mapping[str, Check], readiness: Readiness) -> None:
        self._urls = urls
        self._readiness = readiness
        self._states = _States(checks)
        self._started_us = monotonic_us()
        self.routes: tuple[Route, ...] = ()

    async def get_root(self, request: Request) -> Response:
        listed = [{"method": route.method, "path": route.path, "purpose": route.purpose} for route in self.routes]
        return json_response(
            200,
            {
                "service": "plainsql",
                "version": VERSION,
                "routes": listed,
                # There is none yet.
                "docs": None,
                "data_url": self._urls.data_url,
                "control_url": self._urls.control_url,
                "alias_url": self._urls.alias_url,
                "request_id": request.id,
            },
        )

    async def get_health(self, request: Request) -> Response:
        asked = not request.has_option("live")
        checks = dict(await self._states.get()) if asked else {}
        if asked and self._readiness.draining:
            checks["process"] = "draining"
        ready = set(checks.values()) <= {"ok", DEGRADED}
        status = "ok" if DEGRADED not in checks.values() else DEGRADED
        content = {
            "status": status if ready else "unavailable",
            "version": VERSION,
            "uptime_s": (monotonic_us() - self._started_us) // 1_000_000,
            "checks": checks,
            "request_id": request.id,
        }
        return json_response(200 if ready else 503, content, [] if ready else [(b"retry-after", b"1")])


class _States:
    """What the checks say. Anybody may ask, so that many who ask at once, or soon after, share one answer."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._asking: asyncio.Task[dict[str, str]] | None = None
        self._until_s = 0.0

    async def get(self) -> dict[str, str]:
        """The state of each part. Cancelling one who asks harms no other."""
        if self._asking is None or (self._asking.done() and time.monotonic() >= self._until_s):
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> dict[str, str]:
        states = await asyncio.gather(*(_state(check) for check in self._checks.values()))
        self._until_s = time.monotonic() + _REMEMBERED_S
        return dict(zip(self._checks, states, strict=True))


async def _state(check: Check) -> str:
    try:
        await check()
    except ServiceError as error:
        return error.code
    return "ok"
