"""The application of one plane. `Application.respond` takes a request from the socket to its answer.

It is a plain ASGI callable: on the query routes, the overhead of a framework is measurable.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus

from plainsql_server.core.clock import monotonic_us, now
from plainsql_server.core.errors import (
    RETRY_AFTER_MS,
    EngineError,
    InternalError,
    Outcome,
    ServiceError,
    described,
)
from plainsql_server.core.observation import FailureObserved, Observe, RequestFinished
from plainsql_server.core.principal import Principal
from plainsql_server.directory.principals import Principals
from plainsql_server.http.app.authentication import authenticate, check_scope
from plainsql_server.http.app.rate_limit import take_permit
from plainsql_server.http.app.routes import Route, RouteTable
from plainsql_server.http.app.web_pages import not_found_page, wants_page
from plainsql_server.http.server.accepting.connections import Connections
from plainsql_server.http.server.answers import QueryTimings
from plainsql_server.http.server.channel import CancelReason
from plainsql_server.http.server.cors import allow, cors_headers, options_response
from plainsql_server.http.server.errors import error_response
from plainsql_server.http.server.fast_lane import Lane
from plainsql_server.http.server.long_body import LONG_BODY_BYTES, LongBody, send_parts
from plainsql_server.http.server.protocol import ClientTimeouts
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.requests import AsgiScope, ClientGone, Receive, Request, Send, require_content_type
from plainsql_server.http.server.responses import Response
from plainsql_server.limits.permits import Permits
from plainsql_server.limits.tiers import TIERS

UNKNOWN_ROUTE = "(none)"
# Plain integers, because comparing with enum members is measurably slower.
_WITHOUT_BODY = (int(HTTPStatus.NO_CONTENT), int(HTTPStatus.NOT_MODIFIED))
_METHOD_NOT_ALLOWED = int(HTTPStatus.METHOD_NOT_ALLOWED)
# Only appears in logs: the client disconnected before it was answered.
_GONE = Response(499, b"", error_code="client_gone")

# The resources of an application, opened at startup and closed at shutdown.
Lifespan = Callable[[], AbstractAsyncContextManager[tuple[RouteTable, Principals, Permits]]]


class Application:
    """An ASGI application over a table of routes."""

    def __init__(
        self,
        lifespan: Lifespan,
        observe: Observe,
        readiness: Readiness,
        timeouts: ClientTimeouts,
        connections: Connections,
    ) -> None:
        self.readiness = readiness
        self.timeouts = timeouts
        self.connections = connections
        self._lifespan = lifespan
        self._observe = observe
        self._routes: RouteTable
        self._principals: Principals
        self._permits: Permits
        # Whether the resources are being closed.
        self._is_closing = False
        # The fast lane of this process, where there is one.
        self.lane: Lane | None = None

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            request = Request.from_asgi(scope, receive, self.timeouts.body_s)
            response = await self.respond(request)
            if response is not None:
                await _send(response, request, send)

    async def respond(self, request: Request) -> Response | None:
        """The answer to a request, whether it succeeds or fails. None if the client disconnected.

        The server cancels this when the client disconnects, which also cancels the running statement.
        """
        route: Route | None = None
        principal: Principal | None = None
        try:
            if self._is_closing:
                raise _shutting_down(Outcome.NOT_EXECUTED if not request.was_sent else Outcome.UNKNOWN)
            if request.method == "OPTIONS" and (methods := self._routes.methods_of(request.path)):
                response = options_response(request, methods)
            elif (route := self._routes.find(request)).scope is None:
                response = await route.answer_anyone(request)
            elif request.head_start is not None:
                # The fast lane has authenticated it.
                principal = request.head_start.principal
                request.channel.connection.key_accepted()
                if not request.has_permit:
                    await take_permit(request, principal, self._permits)
                response = await route.answer(request, principal)
            else:
                principal = await authenticate(request, self._principals, route)
                request.channel.connection.key_accepted()
                # Every authenticated request counts, including those that lack the scope.
                if not request.has_permit:
                    await take_permit(request, principal, self._permits)
                check_scope(principal, route)
                if route.body_type is not None and await _read_body(request, route, route.body_type, principal):
                    # The key may have been revoked while the body arrived.
                    principal = await authenticate(request, self._principals, route)
                    check_scope(principal, route)
                if request.refusal is not None:
                    raise request.refusal
                response = await route.answer(request, principal)
        except asyncio.CancelledError:
            if request.channel.cancel_reason is CancelReason.CLIENT_GONE:
                self._observe_finished(request, route, principal, request.streamed or _GONE)
                return None
            # The server cancels what still runs at its very end, and gives no reason.
            response = self._failed(_shutting_down(Outcome.UNKNOWN), request, route)
        except ClientGone:
            self._observe_finished(request, route, principal, _GONE)
            return None
        except ServiceError as error:
            response = self._failed(error, request, route)
        except Exception as error:
            # While the resources are being closed, they fail in many ways.
            context = described(error)
            failure = _shutting_down(Outcome.UNKNOWN, context) if self._is_closing else InternalError(context)
            response = self._failed(failure, request, route)
        if response.stream is not None:
            # It is already sent.
            if response.failure is not None:
                self._observe_failure(response.failure, request)
            self._observe_finished(request, route, principal, response)
            return None
        _complete(response, request)
        self._observe_finished(request, route, principal, response)
        return response

    def _failed(self, error: ServiceError, request: Request, route: Route | None) -> Response:
        self._observe_failure(error, request)
        response = _error_response(error, request, route)
        response.exec_us = error.exec_us
        if error.code == "route_not_found" and wants_page(request):
            response = not_found_page(error, response, request.id)
        if response.status == _METHOD_NOT_ALLOWED:
            response.headers.append(allow(self._routes.methods_of(request.path)))
        return response

    def _observe_failure(self, error: ServiceError, request: Request) -> None:
        if error.internal_context is not None:
            # The lines after the first are PostgreSQL's details, which may contain data that doesn't belong in a log.
            context = error.internal_context.partition("\n")[0]
            self._observe(FailureObserved(now(), "failure", "http", context, request.id))

    def _observe_finished(
        self, request: Request, route: Route | None, principal: Principal | None, response: Response
    ) -> None:
        self._observe(
            RequestFinished(
                now(),
                "request",
                request.id,
                request.method,
                UNKNOWN_ROUTE if route is None else route.path,
                response.status,
                monotonic_us() - request.started_us,
                response.queue_us,
                response.exec_us,
                response.row_count,
                response.command,
                response.error_code,
                None if principal is None else principal.organization_id,
                None if principal is None else principal.key_id,
                request.trace_id(),
                response.stream,
                response.sent_bytes,
            )
        )

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self._lifespan() as (self._routes, self._principals, self._permits):
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self._is_closing = True
        await send({"type": "lifespan.shutdown.complete"})


def _error_response(error: ServiceError, request: Request, route: Route | None) -> Response:
    timings = None
    if route is not None and route.contract.failures is not None:
        return route.contract.failures.response(error, request.id)
    if route is not None and route.answers_queries:
        timings = QueryTimings(total_us=monotonic_us() - request.started_us, exec_us=error.exec_us)
    return error_response(error, request.id, query_timings=timings)


async def _read_body(request: Request, route: Route, content_type: bytes, principal: Principal) -> bool:
    """Reads the body that the route takes. Returns whether it had to wait for it. Raises RequestError."""
    if not route.contract.ignores_content_type:
        require_content_type(request, content_type)
    max_bytes = route.contract.max_body_bytes or TIERS[principal.tier].request_bytes
    return await request.read_body(max_bytes, principal.tier)


def _shutting_down(outcome: Outcome, context: str | None = None) -> EngineError:
    return EngineError(
        "shutting_down",
        "The service is restarting, and the request was cancelled before it finished.",
        # Nothing was done, so it can be sent again.
        retryable=outcome is Outcome.NOT_EXECUTED,
        retry_after_ms=RETRY_AFTER_MS,
        outcome=outcome,
        internal_context=context,
    )


def _complete(response: Response, request: Request) -> None:
    total_us = monotonic_us() - request.started_us
    if response.status not in _WITHOUT_BODY:
        if len(response.body) > LONG_BODY_BYTES and isinstance(response.body, bytes):
            response.body = LongBody([response.body])
        if response.content_type:
            response.headers.append((b"content-type", response.content_type))
        response.headers.append((b"content-length", b"%d" % len(response.body)))
    response.headers += (
        (b"x-request-id", request.id.encode()),
        (
            b"server-timing",
            b"queue;dur=%.3f, engine;dur=%.3f, total;dur=%.3f"
            % (response.queue_us / 1000, response.exec_us / 1000, total_us / 1000),
        ),
        *request.rate_headers,
        *cors_headers(request),
    )


async def _send(response: Response, request: Request, send: Send) -> None:
    async def write(part: bytes) -> bool:
        await send({"type": "http.response.body", "body": part, "more_body": True})
        return True

    last = response.body
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    if isinstance(last, LongBody):
        if request.method != "HEAD" and not await send_parts(last, request.channel, write):
            return
        last = b""
    await send({"type": "http.response.body", "body": last})
