"""GET /bench: measures how fast a database is through this service.

This module has the models and computes the percentiles. The measuring is in `data_plane/diagnostics/bench.py`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.diagnostics.bench import (
    MAX_CONCURRENCY,
    MAX_ITERATIONS,
    Benchmarks,
    Limit,
    Operation,
    OperationName,
)
from plainsql_server.http.server.answers import Count, Microseconds, RequestId, Success
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response

Took = Annotated[Microseconds | None, Meta(description="In microseconds. Null if no operation succeeded.")]


class BenchOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of GET /bench. The defaults leave an organization on the free tier some of its rate limit."""

    iterations: Annotated[int, Meta(ge=1, le=MAX_ITERATIONS, description="How many times to run each operation.")] = 20
    concurrency: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY, description="How many operations to run at once.")] = 2


class BenchOperation(msgspec.Struct, kw_only=True):
    """The measurements of one kind of operation."""

    name: Annotated[OperationName, Meta(description="The kind of operation.")]
    count: Annotated[Count, Meta(description="Operations that succeeded.")]
    errors: Annotated[Count, Meta(description="Operations that failed.")]
    min_us: Took
    p50_us: Took
    p95_us: Took
    p99_us: Took
    max_us: Took
    ops_per_s: Annotated[float, Meta(description="Successful operations per second.")]


class BenchAnswer(msgspec.Struct, kw_only=True):
    """The results of the benchmark."""

    success: Success = True
    ops: list[BenchOperation]
    iterations: Annotated[Count, Meta(description="The number of iterations requested.")]
    concurrency: Annotated[Count, Meta(description="The concurrency requested.")]
    limited_by: Annotated[Limit | None, Meta(description="What ended the benchmark early, if anything did.")]
    request_id: RequestId


class BenchRoutes:
    """The handler of GET /bench."""

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks

    async def get(self, request: Request, principal: Principal) -> Response:
        options = request.options(BenchOptions)
        measured = await self._benchmarks.run(
            principal, request.header(b"x-database"), options.iterations, options.concurrency
        )
        answer = BenchAnswer(
            ops=[_shown(operation) for operation in measured.operations],
            iterations=options.iterations,
            concurrency=options.concurrency,
            limited_by=measured.limited_by,
            request_id=request.id,
        )
        return json_response(200, answer)


def _shown(operation: Operation) -> BenchOperation:
    took_us = sorted(operation.took_us)

    def at(share: float) -> int | None:
        # Nearest rank, so the result is a time that was actually measured.
        return took_us[max(0, -int(-share * len(took_us) // 1) - 1)] if took_us else None

    return BenchOperation(
        name=operation.name, count=len(took_us), errors=operation.errors,
        min_us=at(0), p50_us=at(0.5), p95_us=at(0.95), p99_us=at(0.99), max_us=at(1),
        ops_per_s=round(len(took_us) * 1_000_000 / max(1, operation.lasted_us), 1),
    )  # fmt: skip
