"""Settings in, running applications out: the only place that knows every room.

Owns what is connected to what, and how a plane is served. Refuses rules of any kind.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import uvicorn

from plainsql_server.core.observation import Observation
from plainsql_server.core.principal import Scope
from plainsql_server.data_plane.databases import Databases
from plainsql_server.data_plane.health import Health
from plainsql_server.data_plane.query import Queries
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.principals import Principals
from plainsql_server.engine.pool import PoolLimits, Pools
from plainsql_server.http.application import Application, signed_in
from plainsql_server.http.banner import Banner, Check, Urls
from plainsql_server.http.protocol import ShortWayProtocol
from plainsql_server.http.query import QueryRoutes
from plainsql_server.http.routes import Route, RouteTable
from plainsql_server.logs import Log
from plainsql_server.metrics import Metrics
from plainsql_server.settings import Settings, read_settings

# An answer takes at most the dedicated tier's deadline; a stop does not wait that long.
_SHUTDOWN_TIMEOUT_S = 3
# Idle keep-alive connections cost a descriptor each; clients that poll every minute keep theirs.
_KEEP_ALIVE_S = 75


class Observer:
    """The one exit of observations: the log and the metrics."""

    def __init__(self) -> None:
        self.log = Log()
        self.metrics = Metrics()

    @classmethod
    def serving(cls, settings: Settings, host: str, processes: int) -> "Observer":
        """With its metrics on the first free of the ports that the processes of a plane share."""
        observer = cls()
        if settings.metrics_port:
            first = settings.metrics_port
            observer.metrics.serve(host, range(first, first + processes))
        return observer

    def __call__(self, observation: Observation) -> None:
        self.log(observation)
        self.metrics(observation)


def data_application() -> Application:
    """The data plane, configured by the environment; each worker process makes its own."""
    settings = read_settings()
    return build_data_application(settings, Observer.serving(settings, settings.data_host, settings.workers))


def control_application() -> Application:
    """The control plane, configured by the environment."""
    return build_control_application(read_settings(), Observer())


def build_data_application(settings: Settings, observe: Observer) -> Application:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[tuple[RouteTable, Principals]]:
        async with Directory.open(settings.directory_dsn) as directory, _pools(settings, observe) as pools:
            observe.metrics.watch(pools.loads)
            databases = Databases(directory, settings.principal_cache_ms)
            health = Health(directory)
            checks: dict[str, Check] = {"engine": health.engine, "directory": health.directory}
            routes = QueryRoutes(Queries(databases, pools))
            yield (
                RouteTable([*_banner_routes(settings, checks, data_routes(routes))]),
                Principals(directory, settings.principal_cache_ms),
            )

    return Application(lifespan, observe)


def build_control_application(settings: Settings, observe: Observer) -> Application:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[tuple[RouteTable, Principals]]:
        async with Directory.open(settings.directory_dsn) as directory:
            checks: dict[str, Check] = {"directory": directory.check}
            yield (
                RouteTable(_banner_routes(settings, checks, [])),
                Principals(directory, settings.principal_cache_ms),
            )

    return Application(lifespan, observe)


def data_routes(queries: QueryRoutes) -> list[Route]:
    """The data plane's own routes."""
    return [
        Route(
            "POST", "/v1/query", Scope.READ, "Run one SQL statement, sent as JSON",
            signed_in(queries.post_json), answers_queries=True,
        ),
        Route(
            "POST", "/query", Scope.READ, "Run one SQL statement, sent as plain text",
            signed_in(queries.post_text), answers_queries=True,
        ),
    ]  # fmt: skip


def serve_data(settings: Settings) -> None:
    """Serves the data plane until it is told to stop."""
    _serve("data_application", settings, settings.data_host, settings.data_port, settings.workers)


def serve_control(settings: Settings) -> None:
    """Serves the control plane until it is told to stop."""
    _serve("control_application", settings, settings.control_host, settings.control_port, workers=1)


def _banner_routes(settings: Settings, checks: dict[str, Check], routes: list[Route]) -> list[Route]:
    banner = Banner(Urls(settings.data_url, settings.control_url, settings.alias_url), checks)
    banner_routes = [
        Route("GET", "/", None, "This list of routes", banner.get_root),
        Route("GET", "/health", None, "Health check", banner.get_health),
    ]
    banner.routes = (*routes, *banner_routes)
    return [*routes, *banner_routes]


@asynccontextmanager
async def _pools(settings: Settings, observe: Observer) -> AsyncIterator[Pools]:
    limits = PoolLimits(settings.pool_max_connections, settings.cell_max_connections, settings.cell_max_waiting)
    pools = Pools(limits, settings.connect_timeout_ms, observe)
    sweeping = asyncio.create_task(pools.sweep())
    try:
        yield pools
    finally:
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        await pools.close()


def _serve(factory: str, settings: Settings, host: str, port: int, workers: int) -> None:
    uvicorn.run(
        f"{__name__}:{factory}",
        factory=True,
        host=host,
        port=port,
        workers=workers,
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
        loop="uvloop",
        http=ShortWayProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
