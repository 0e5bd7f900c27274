"""The application of one plane: every request's way from the socket to its answer, in one function.

Owns the order of the steps. A bare ASGI callable, because on the query routes the framework shows.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import InternalError, ServiceError
from plainsql_server.core.observation import Failure, Observe, RequestFinished
from plainsql_server.core.principal import Principal
from plainsql_server.directory.principals import Principals
from plainsql_server.http.authentication import authenticate
from plainsql_server.http.errors import error_response
from plainsql_server.http.requests import ClientGone, Receive, Request, Scope, Send
from plainsql_server.http.responses import Response
from plainsql_server.http.routes import Route, RouteTable

UNKNOWN_ROUTE = "(none)"
# Seen in logs only: the client went away before it was answered.
_GONE = Response(499, b"", error_code="client_gone")

# What an application needs while it runs, opened at start and closed at stop.
Lifespan = Callable[[], AbstractAsyncContextManager[tuple[RouteTable, Principals]]]


class Application:
    """An ASGI application over a table of routes."""

    def __init__(self, lifespan: Lifespan, observe: Observe) -> None:
        self._lifespan = lifespan
        self._observe = observe
        self._routes: RouteTable
        self._principals: Principals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            response = await self.respond(Request.from_asgi(scope, receive))
            if response is not None:
                await _send(response, send)

    async def respond(self, request: Request) -> Response | None:
        """The answer to a request, whatever happens; None where the client went away.

        Cancelling it, which the server does when the client goes away, cancels the statement that it runs.
        """
        route: Route | None = None
        principal: Principal | None = None
        try:
            route = self._routes.find(request.method, request.path)
            if route.scope is not None:
                principal = await authenticate(request, self._principals, route.scope)
            response = await route.handle(request, principal)
        except (ClientGone, asyncio.CancelledError):
            self._observe_finished(request, route, principal, _GONE)
            return None
        except ServiceError as error:
            response = self._failed(error, request, route)
        except Exception as error:
            response = self._failed(InternalError(f"{type(error).__name__}: {error}"), request, route)
        _complete(response, request)
        self._observe_finished(request, route, principal, response)
        return response

    def _failed(self, error: ServiceError, request: Request, route: Route | None) -> Response:
        if error.internal_context is not None:
            self._observe(Failure("http", error.internal_context, request.id))
        timings = None
        if route is not None and route.answers_queries:
            timings = {"total_us": monotonic_us() - request.started_us, "exec_us": 0}
        response = error_response(error, request.id, query_timings=timings)
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers.append((b"allow", ", ".join(self._routes.methods_of(request.path)).encode()))
        return response

    def _observe_finished(
        self, request: Request, route: Route | None, principal: Principal | None, response: Response
    ) -> None:
        self._observe(
            RequestFinished(
                request_id=request.id,
                method=request.method,
                route=UNKNOWN_ROUTE if route is None else route.path,
                status=response.status,
                total_us=monotonic_us() - request.started_us,
                queue_us=response.queue_us,
                exec_us=response.exec_us,
                organization_id=None if principal is None else principal.organization_id,
                command=response.command,
                row_count=response.row_count,
                error_code=response.error_code,
                trace_id=request.trace_id(),
            )
        )

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self._lifespan() as (self._routes, self._principals):
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def _complete(response: Response, request: Request) -> None:
    timing = b"queue;dur=%.3f, engine;dur=%.3f, total;dur=%.3f" % (
        response.queue_us / 1000, response.exec_us / 1000, (monotonic_us() - request.started_us) / 1000,
    )  # fmt: skip
    response.headers += (
        (b"content-type", response.content_type),
        (b"content-length", b"%d" % len(response.body)),
        (b"x-request-id", request.id.encode()),
        (b"server-timing", timing),
    )


async def _send(response: Response, send: Send) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    await send({"type": "http.response.body", "body": response.body})


Answer = Callable[[Request, Principal], Awaitable[Response]]


def signed_in(answer: Answer) -> Callable[[Request, Principal | None], Awaitable[Response]]:
    """A handler that is only ever called with a principal, because its route names a scope."""

    async def handle(request: Request, principal: Principal | None) -> Response:
        assert principal is not None, "a route with a scope authenticates first"
        return await answer(request, principal)

    return handle
