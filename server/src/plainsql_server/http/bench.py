"""GET /bench: how fast a database is, through this service.

Owns the options, the answer's shape and what is made of the measured times.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.bench import MAX_CONCURRENCY, MAX_ITERATIONS, Benchmarks, Operation
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response


class BenchOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of GET /bench. By default it leaves a free organization room for further requests."""

    iterations: Annotated[int, Meta(ge=1, le=MAX_ITERATIONS)] = 20
    concurrency: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY)] = 2


class BenchOperation(msgspec.Struct, kw_only=True):
    """One kind of work. Without a success there are no times."""

    name: Literal["point_read", "point_write", "transaction", "stream"]
    count: int
    errors: int
    min_us: int | None
    p50_us: int | None
    p95_us: int | None
    p99_us: int | None
    max_us: int | None
    ops_per_s: float


class BenchAnswer(msgspec.Struct, kw_only=True):
    """The answer of GET /bench."""

    success: Literal[True]
    ops: list[BenchOperation]
    iterations: int
    concurrency: int
    limited_by: Literal["time", "rate_limit"] | None
    request_id: str


class BenchRoutes:
    """The handler of the route."""

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks

    async def get(self, request: Request, principal: Principal) -> Response:
        options = request.options(BenchOptions)
        measured = await self._benchmarks.run(
            principal, request.header(b"x-database"), options.iterations, options.concurrency
        )
        answer = {
            "success": True,
            "ops": [_told(operation) for operation in measured.operations],
            "iterations": options.iterations,
            "concurrency": options.concurrency,
            "limited_by": measured.limited_by,
            "request_id": request.id,
        }
        return Response(200, msgspec.json.encode(answer))


def _told(operation: Operation) -> BenchOperation:
    took_us = sorted(operation.took_us)

    def at(share: float) -> int | None:
        # The nearest rank: a time that was really measured.
        return took_us[max(0, -int(-share * len(took_us) // 1) - 1)] if took_us else None

    return BenchOperation(
        name=operation.name,  # type: ignore[arg-type]  # the names are those of the data plane, one test compares them
        count=len(took_us), errors=operation.errors,
        min_us=at(0), p50_us=at(0.5), p95_us=at(0.95), p99_us=at(0.99), max_us=at(1),
        ops_per_s=round(len(took_us) * 1_000_000 / max(1, operation.lasted_us), 1),
    )  # fmt: skip
