"""GET /, GET /health, GET /health/live and GET /health/ready: what this service is, and whether it works.

All of them are public, so they reveal nothing about any customer.

A process is live if it answers: restart it if it does not. It is ready if it can serve customers, which needs the
directory: send it no requests if it cannot. A cell that is away concerns all processes alike, so it makes none of them
unready; `/health` reports it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from plainsql_server import VERSION
from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import RETRY_AFTER_MS, ServiceError
from plainsql_server.http.app.contract import Contract, Media
from plainsql_server.http.app.routes import Route, open_route
from plainsql_server.http.app.web_pages import HTML, VARY, start_page, wants_page
from plainsql_server.http.server.answers import Count, RequestId
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response

Check = Callable[[], Awaitable[None]]
Status = Literal["ok", "degraded", "unavailable"]
# The error code of a failed check that does not affect requests.
DEGRADED = "degraded"
# How long the results are cached: shorter than the check interval of any load balancer.
_REMEMBERED_S = 0.5
# The checks that decide whether a process is ready.
_NEEDED = ("directory",)


@dataclass(frozen=True, slots=True)
class Urls:
    """The public URLs of the three hosts."""

    data_url: str
    control_url: str
    alias_url: str | None


class ListedRoute(msgspec.Struct, kw_only=True):
    """A route on this plane."""

    method: Annotated[str, Meta(description="GET, POST, PATCH or DELETE.")]
    path: Annotated[str, Meta(description="The path, with placeholders such as {id}.")]
    purpose: Annotated[str, Meta(description="What the route does.")]


class BannerAnswer(msgspec.Struct, kw_only=True):
    """The service's name, version and routes."""

    service: Annotated[str, Meta(description="The name of the service.", extra_json_schema={"const": "plainsql"})] = (
        "plainsql"
    )
    version: Annotated[str, Meta(description="The version of the service.")] = VERSION
    routes: list[ListedRoute]
    docs: Annotated[str, Meta(description="URL of this plane's API reference.")]
    data_url: Annotated[str, Meta(description="URL of the data plane.")]
    control_url: Annotated[str, Meta(description="URL of the control plane.")]
    alias_url: Annotated[str | None, Meta(description="URL of the alias host, if there is one.")]
    request_id: RequestId


class HealthOptions(msgspec.Struct, kw_only=True):
    """The query string of GET /health."""

    live: Annotated[str | None, Meta(description="Skip the checks and only report that the process responds.")] = None


class HealthAnswer(msgspec.Struct, kw_only=True):
    """The health of this plane."""

    status: Annotated[Status, Meta(description="`unavailable` is sent with status 503.")]
    version: Annotated[str, Meta(description="The version of the service.")] = VERSION
    uptime_s: Annotated[Count, Meta(description="How long this process has been running, in seconds.")]
    checks: Annotated[dict[str, str], Meta(description="The result of each check: `ok` or an error code.")]
    request_id: RequestId


class PublicRoutes:
    """The public routes that both planes have."""

    def __init__(self, own_url: str, urls: Urls, checks: Mapping[str, Check], readiness: Readiness) -> None:
        self._own_url = own_url
        self._urls = urls
        self._readiness = readiness
        self._states = _States(checks)
        # On their own, so that a cell that does not answer delays no answer about them.
        self._ready_states = _States({name: check for name, check in checks.items() if name in _NEEDED})
        self._started_us = monotonic_us()
        self.routes: tuple[Route, ...] = ()

    def open_routes(self) -> list[Route]:
        shown = Contract(answers={200: BannerAnswer}, errors=(), pages=(Media(HTML, "The same as a page."),))
        checked = Contract(options=HealthOptions, answers={200: HealthAnswer, 503: HealthAnswer}, errors=())
        live = Contract(answers={200: HealthAnswer}, errors=())
        ready = Contract(answers={200: HealthAnswer, 503: HealthAnswer}, errors=())
        return [
            open_route("GET", "/", "This list of routes", self.get_root, contract=shown),
            open_route("GET", "/health", "Health check", self.get_health, contract=checked),
            open_route("GET", "/health/live", "Whether the process answers", self.get_live, contract=live),
            open_route("GET", "/health/ready", "Whether it can answer requests", self.get_ready, contract=ready),
        ]

    async def get_root(self, request: Request) -> Response:
        listed = [ListedRoute(method=each.method, path=each.path, purpose=each.purpose) for each in self.routes]
        content = BannerAnswer(
            routes=listed,
            docs=f"{self._own_url}/docs",
            data_url=self._urls.data_url,
            control_url=self._urls.control_url,
            alias_url=self._urls.alias_url,
            request_id=request.id,
        )
        return start_page(content) if wants_page(request) else json_response(200, content, [VARY])

    async def get_health(self, request: Request) -> Response:
        if request.has_option("live"):
            return await self.get_live(request)
        return self._answer(request, await self._states.get())

    async def get_live(self, request: Request) -> Response:
        return json_response(200, self._content(request, {}, "ok"))

    async def get_ready(self, request: Request) -> Response:
        return self._answer(request, await self._ready_states.get())

    def _answer(self, request: Request, states: Mapping[str, str]) -> Response:
        checks = dict(states)
        if self._readiness.draining and not self._readiness.is_replaced:
            checks["process"] = "draining"
        is_ready = set(checks.values()) <= {"ok", DEGRADED}
        content = self._content(request, checks, _status(checks, is_ready))
        if is_ready:
            return json_response(200, content)
        return json_response(503, content, [(b"retry-after", b"%d" % (RETRY_AFTER_MS // 1000))])

    def _content(self, request: Request, checks: dict[str, str], status: Status) -> HealthAnswer:
        uptime_s = (monotonic_us() - self._started_us) // 1_000_000
        return HealthAnswer(status=status, uptime_s=uptime_s, checks=checks, request_id=request.id)


class _States:
    """The results of the checks. Because the route is public, concurrent and frequent requests share one result."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._asking: asyncio.Task[dict[str, str]] | None = None
        self._until_s = 0.0

    async def get(self) -> dict[str, str]:
        """The result of each check. Cancelling one caller does not affect the others."""
        if self._asking is None or (self._asking.done() and time.monotonic() >= self._until_s):
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> dict[str, str]:
        states = await asyncio.gather(*(_state(check) for check in self._checks.values()))
        self._until_s = time.monotonic() + _REMEMBERED_S
        return dict(zip(self._checks, states, strict=True))


def _status(checks: Mapping[str, str], is_ready: bool) -> Status:
    if not is_ready:
        return "unavailable"
    return "degraded" if DEGRADED in checks.values() else "ok"


async def _state(check: Check) -> str:
    try:
        await check()
    except ServiceError as error:
        return error.code
    return "ok"
