"""Builds the two applications from the settings, and serves them.

This is the only module that knows all packages and connects them. It contains no rules.
"""

import asyncio
import multiprocessing
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from psycopg.conninfo import conninfo_to_dict

from plainsql_server.control_plane.disk_guard import DiskGuard
from plainsql_server.control_plane.finishing import Finisher
from plainsql_server.control_plane.reaping import Reaper
from plainsql_server.control_plane.spanning import Recovery
from plainsql_server.control_plane.upkeep import Upkeep
from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError, described
from plainsql_server.core.long_work import favour_loop
from plainsql_server.core.observation import FailureObserved, Observation, Observe
from plainsql_server.core.share import Share
from plainsql_server.core.tasks import end
from plainsql_server.data_plane.databases import Databases
from plainsql_server.data_plane.diagnostics.probe_context import Executors
from plainsql_server.data_plane.diagnostics.temporary_schemas import TemporarySchemas
from plainsql_server.data_plane.health import Health
from plainsql_server.data_plane.idempotency import Idempotency
from plainsql_server.data_plane.query import Queries
from plainsql_server.data_plane.service_connections import ServiceConnections
from plainsql_server.data_plane.spanning import Spanning
from plainsql_server.data_plane.spanning_lock import SpanningLocks
from plainsql_server.data_plane.stream import Streams
from plainsql_server.data_plane.transaction import Transactions
from plainsql_server.directory.channel import Channel
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.principals import Principals
from plainsql_server.directory.rights.grants import Role
from plainsql_server.directory.sealing.keyring import Keyring
from plainsql_server.directory.sharing.permits import PermitCounts
from plainsql_server.directory.sharing.processes import Listing, Membership
from plainsql_server.directory.spanning import SpanningNotifier
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.pool.pools import PoolLimits, Pools
from plainsql_server.garbage import spare_requests
from plainsql_server.http.app.application import Application
from plainsql_server.http.app.credential_watch import CredentialWatch
from plainsql_server.http.app.health import Check, PublicRoutes, Urls
from plainsql_server.http.app.planes import OtherPlane
from plainsql_server.http.app.reference import ReferencePage
from plainsql_server.http.app.routes import Route, RouteTable
from plainsql_server.http.control.mcp.route import DataPlaneAddress, McpRoute
from plainsql_server.http.control.routes import control_routes
from plainsql_server.http.data.idempotency import IdempotencyRoutes
from plainsql_server.http.data.neon import NeonRoutes
from plainsql_server.http.data.query import QueryRoutes
from plainsql_server.http.data.routes import data_routes
from plainsql_server.http.data.streams import Pace, StreamedAnswers
from plainsql_server.http.data.transaction import TransactionRoutes
from plainsql_server.http.data.utility_routes import utility_routes
from plainsql_server.http.server.accepting.connections import ConnectionLimits, Connections, allow_descriptors
from plainsql_server.http.server.protocol import ClientTimeouts, FastPathProtocol
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.workers import serve
from plainsql_server.lane.opening import PATHS, Doors, Observers, opened_lane
from plainsql_server.limits.counted import from_directory
from plainsql_server.limits.opening import from_redis, open_permits
from plainsql_server.limits.permits import Permits
from plainsql_server.logs import Log
from plainsql_server.metrics import Metrics
from plainsql_server.settings import Settings, read_settings

# An idle keep-alive connection costs a descriptor. Clients that poll every minute keep theirs.
_KEEP_ALIVE_S = 75
# A worker that does not respond for this long is replaced. On a busy machine a worker takes some seconds to start; with
# a shorter limit it would be replaced before it is up, again and again. A worker that dies is noticed at once in any
# case.
_WORKER_HEALTHCHECK_S = 30
# Every control request uses the directory, most of them for several statements.
_CONTROL_DIRECTORY_CONNECTIONS = 8
# While Redis is unavailable, the planes divide each rate limit. The control plane is called rarely and gets the smaller
# part.
_DATA_PLANES_PART = Fraction(9, 10)


class Observer:
    """The receiver of all observations: passes them to the log, the metrics and the tally."""

    def __init__(self) -> None:
        self.log = Log()
        self.metrics = Metrics()
        # Records which keys are used. Set once the directory is open.
        self.tally: Tally | None = None

    @classmethod
    def serving(cls, host: str, ports: range) -> "Observer":
        """An observer that serves its metrics on the first free port of those that the plane's processes share."""
        observer = cls()
        if ports:
            observer.metrics.serve(host, ports)
        return observer

    def __call__(self, observation: Observation) -> None:
        self.log(observation)
        self.metrics(observation)
        if self.tally is not None:
            self.tally.note_request(observation)


def data_application(own_port: int | None = None) -> Application:
    """The data plane, configured from the environment. Each worker process creates its own."""
    settings = read_settings()
    observer = Observer.serving(settings.metrics_host, settings.metrics_ports)
    application = build_data_application(settings, observer, own_port)
    spare_requests()
    favour_loop()
    return application


def control_application() -> Application:
    """The control plane, configured from the environment."""
    settings = read_settings()
    observer = Observer.serving(settings.metrics_host, _control_metrics_ports(settings))
    return build_control_application(settings, observer)


def build_data_application(settings: Settings, observe: Observer, own_port: int | None = None) -> Application:
    readiness = Readiness(settings.drain_ms)
    connections = _connections(settings)
    notifier, share, processes_changed = SpanningNotifier(), Share(), asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[tuple[RouteTable, Principals, Permits]]:
        pools = _new_pools(settings, observe, share)
        listing = Listing("data", settings.own_address(own_port) if own_port else None)
        membership = Membership(
            settings.directory_dsn, share, listing, observe, announced=processes_changed, pools=pools
        )
        async with (
            _metrics(observe, readiness),
            Directory.open(settings.directory_dsn, role=Role.DATA, secrets=_keyring(settings)) as directory,
            _tally(directory, settings, observe) as tally,
            _freshness(settings, observe, processes_changed, notifier) as freshness,
            _in_background(_report_rights(directory, observe), observe),
            _in_background(connections.watch(), observe),
            _in_background(connections.handshakes.report(observe), observe),
            _in_background(connections.unauthenticated.report(observe), observe),
            # Others may open as many connections as soon as this process has left, so it closes its own before.
            _membership(membership, readiness, observe),
            _open(pools, observe),
            _permits(settings, observe, share, _DATA_PLANES_PART) as permits,
        ):
            await membership.joined.wait()
            observe.metrics.watch(pools.loads)
            observe.metrics.watch_handshakes(connections.handshakes.load)
            observe.metrics.watch_unauthenticated(connections.unauthenticated.load)
            readiness.drain_on_signals()
            _end_with_parent()
            databases = Databases(directory, freshness)
            health = Health(directory)
            checks: dict[str, Check] = {
                "engine": health.engine, "directory": health.directory, "limiter": permits.check,
            }  # fmt: skip
            spanning = Spanning(SpanningLocks(directory, notifier, observe), observe)
            queries, transactions = Queries(databases, pools, tally), Transactions(databases, pools, tally, spanning)
            idempotency = IdempotencyRoutes(Idempotency(databases, pools, transactions))
            pace = Pace(settings.stream_ping_ms, settings.stream_stall_ms)
            streams = Streams(databases, pools, queries, tally)
            principals = Principals(directory, freshness)
            streamed = StreamedAnswers(streams, pace, CredentialWatch(principals, observe))
            routes = data_routes(
                QueryRoutes(queries, idempotency, streamed),
                TransactionRoutes(transactions, idempotency),
                NeonRoutes(queries, transactions, idempotency),
                idempotency,
            )
            own = ServiceConnections(databases, pools, tally)
            executors = Executors(own, TemporarySchemas(own), queries, transactions, streams)
            routes += utility_routes(directory, executors, permits)
            table = RouteTable(
                _all_routes("data", settings, checks, readiness, routes), OtherPlane("control", settings.control_url)
            )
            lane_routes = [route for route in routes if route.path in PATHS]
            with opened_lane(
                Doors(principals, databases, pools, permits, readiness, freshness, lane_routes),
                Observers(observe.log, observe.metrics, tally),
                settings.fast_lane,
            ) as application.lane:
                yield table, principals, permits

    application = Application(lifespan, observe, readiness, _timeouts(settings), connections)
    return application


def build_control_application(settings: Settings, observe: Observer) -> Application:
    readiness = Readiness(settings.drain_ms)
    connections, share, processes_changed = _connections(settings), Share(), asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[tuple[RouteTable, Principals, Permits]]:
        membership = Membership(settings.directory_dsn, share, Listing("control"), observe, announced=processes_changed)
        async with (
            _metrics(observe, readiness),
            Directory.open(
                settings.directory_dsn, _CONTROL_DIRECTORY_CONNECTIONS, Role.CONTROL, _keyring(settings)
            ) as directory,
            _tally(directory, settings, observe),
            _freshness(settings, observe, processes_changed) as freshness,
            _in_background(_report_rights(directory, observe), observe),
            _in_background(connections.watch(), observe),
            _in_background(connections.handshakes.report(observe), observe),
            _in_background(connections.unauthenticated.report(observe), observe),
            _membership(membership, readiness, observe),
            _permits(settings, observe, share, 1 - _DATA_PLANES_PART) as permits,
            _finisher(directory, observe) as finisher,
            _in_background(Reaper(directory, observe).run(), observe),
            _in_background(Recovery(directory, observe).run(), observe),
            _in_background(DiskGuard(directory, observe, settings.database_max_mb * 1_000_000).run(), observe),
            _upkeep(directory, settings, observe) as upkeep,
            _mcp(directory, settings) as mcp,
        ):
            await membership.joined.wait()
            observe.metrics.watch_upkeep(upkeep.load)
            readiness.drain_on_signals()
            _end_with_parent()
            checks: dict[str, Check] = {"directory": directory.check, "limiter": permits.check}
            routes = control_routes(
                directory, _urls(settings), settings.database_restore_s, finisher.there_is_work, mcp
            )
            observe.metrics.watch_handshakes(connections.handshakes.load)
            observe.metrics.watch_unauthenticated(connections.unauthenticated.load)
            table = RouteTable(
                _all_routes("control", settings, checks, readiness, routes), OtherPlane("data", settings.data_url)
            )
            yield table, Principals(directory, freshness), permits

    return Application(lifespan, observe, readiness, _timeouts(settings), connections)


def _connections(settings: Settings) -> Connections:
    total = allow_descriptors(settings.max_connections)
    request_s = settings.body_timeout_ms / 1000
    unauthenticated_bytes = settings.unauthenticated_mb * 1_000_000
    return Connections(
        ConnectionLimits(total, settings.address_connections, request_s, _KEEP_ALIVE_S, unauthenticated_bytes)
    )


def _keyring(settings: Settings) -> Keyring:
    return Keyring.of(settings.secrets_keys, refuses_unsealed=settings.refuses_unsealed_secrets)


def _timeouts(settings: Settings) -> ClientTimeouts:
    return ClientTimeouts(settings.body_timeout_ms / 1000, settings.stream_stall_ms / 1000)


def serve_data(settings: Settings) -> None:
    """Serves the data plane until it receives a stop signal."""
    config = _config("data_application", settings, settings.data_host, settings.data_port, settings.workers)
    serve(config, settings.own_ports, [(settings.metrics_host, port) for port in settings.metrics_ports])


def serve_control(settings: Settings) -> None:
    """Serves the control plane until it receives a stop signal."""
    config = _config("control_application", settings, settings.control_host, settings.control_port, workers=1)
    serve(config, also_free=[(settings.metrics_host, port) for port in _control_metrics_ports(settings)])


def _control_metrics_ports(settings: Settings) -> range:
    port = settings.control_metrics_port
    return range(port, port + 1) if port else range(0)


def _all_routes(
    plane: str, settings: Settings, checks: dict[str, Check], readiness: Readiness, routes: list[Route]
) -> list[Route]:
    """A plane's own routes, and those that both planes have."""
    reference = ReferencePage(plane)
    own_url = settings.data_url if plane == "data" else settings.control_url
    public = PublicRoutes(own_url, _urls(settings), checks, readiness)
    every = [*routes, *public.open_routes(), *reference.routes()]
    public.routes = tuple(every)
    reference.describe(every)
    return every


def _urls(settings: Settings) -> Urls:
    return Urls(settings.data_url, settings.control_url, settings.alias_url)


async def _report_rights(directory: Directory, observe: Observe) -> None:
    """Says at the start why the plane can't use the directory. `/health/ready` fails as long as that lasts."""
    try:
        await directory.check()
    except ServiceError as error:
        observe(FailureObserved(now(), "failure", "directory", error.internal_context or error.message))


@asynccontextmanager
async def _metrics(observe: Observer, readiness: Readiness) -> AsyncIterator[None]:
    """Serves metrics until the process stops, or until a successor needs the port."""

    async def close_when_replaced() -> None:
        await readiness.drain_began.wait()
        if readiness.is_replaced:
            await asyncio.to_thread(observe.metrics.close)

    async with _in_background(close_when_replaced(), observe):
        yield
    # In a thread, because it waits for the one that serves.
    await asyncio.to_thread(observe.metrics.close)


@asynccontextmanager
async def _freshness(
    settings: Settings, observe: Observe, processes_changed: asyncio.Event, notifier: SpanningNotifier | None = None
) -> AsyncIterator[Freshness]:
    """The freshness of cached lookups, kept up to date by change notifications."""
    freshness = Freshness(settings.principal_cache_ms, settings.channel_cache_ms, settings.directory_grace_ms)
    channel = Channel(settings.directory_dsn, freshness, observe, notifier, processes_changed)
    async with _in_background(channel.run(), observe):
        yield freshness


@asynccontextmanager
async def _tally(directory: Directory, settings: Settings, observe: Observer) -> AsyncIterator[Tally]:
    """Counts usage. The last counts are written when everything else has stopped."""
    observe.tally = tally = Tally(directory, settings.usage_flush_ms, observe)
    async with _in_background(tally.run(), observe):
        yield tally
    try:
        await tally.finish()
    except ServiceError as error:
        observe(FailureObserved(now(), "failure", "usage", f"lost at shutdown: {error.internal_context}"))


@asynccontextmanager
async def _membership(membership: Membership, readiness: Readiness, observe: Observe) -> AsyncIterator[None]:
    """This process in the directory's list of processes, until it stops.

    It does not wait until the process has its share, because the rest can be opened at the same time.
    """
    try:
        async with _in_background(membership.run(readiness.drain_began), observe):
            yield
    finally:
        await membership.leave()


@asynccontextmanager
async def _finisher(directory: Directory, observe: Observe) -> AsyncIterator[Finisher]:
    finisher = Finisher(directory, observe)
    async with _in_background(finisher.run(), observe):
        yield finisher


@asynccontextmanager
async def _upkeep(directory: Directory, settings: Settings, observe: Observe) -> AsyncIterator[Upkeep]:
    client = conninfo_to_dict(settings.directory_dsn).get("sslcert")
    files = {"planes": settings.tls_cert_file, "client of the directory": client}
    upkeep = Upkeep(directory, observe, {name: str(file) for name, file in files.items() if file})
    async with _in_background(upkeep.run(), observe):
        yield upkeep


@asynccontextmanager
async def _mcp(directory: Directory, settings: Settings) -> AsyncIterator[McpRoute]:
    route = McpRoute(directory, DataPlaneAddress(settings.mcp_data_url or settings.data_url, settings.mcp_ca_file))
    try:
        yield route
    finally:
        await route.close()


@asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None], observe: Observe) -> AsyncIterator[None]:
    """Runs an endless task for the length of the block. If the task fails, the failure is logged."""

    def say(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            observe(FailureObserved(now(), "failure", "background", f"{task.get_coro()}: {described(error)}"))

    task = asyncio.create_task(work)
    task.add_done_callback(say)
    try:
        yield
    finally:
        await end(task)


@asynccontextmanager
async def _permits(settings: Settings, observe: Observer, share: Share, part: Fraction) -> AsyncIterator[Permits]:
    if settings.redis_url is None:
        source = from_directory(lambda: PermitCounts.open(settings.directory_dsn))
    else:
        source = from_redis(settings.redis_url)
    async with open_permits(observe, source, share, part) as permits:
        observe.metrics.watch_limiter(permits.load)
        yield permits


def _new_pools(settings: Settings, observe: Observer, share: Share) -> Pools:
    limits = PoolLimits(
        settings.pool_max_connections, settings.cell_max_connections, settings.cell_max_waiting,
        cell_running=settings.cell_max_running,
    )  # fmt: skip
    return Pools(limits, settings.connect_timeout_ms, observe, share)


@asynccontextmanager
async def _open(pools: Pools, observe: Observer) -> AsyncIterator[None]:
    """The pools, until the process stops. Then they are closed."""
    try:
        async with _in_background(pools.sweep(), observe):
            yield
    finally:
        await pools.close()


def safety_headers(settings: Settings) -> list[tuple[str, str]]:
    """Headers for browsers in every response: no content sniffing, no frames, and HTTPS only if TLS is on.

    Not for localhost: a browser would no longer open http://localhost, whichever program serves it on whichever port.
    """
    headers = [("x-content-type-options", "nosniff"), ("x-frame-options", "DENY")]
    host = urlsplit(settings.data_url).hostname or ""
    if settings.tls_cert_file and host != "localhost" and not host.endswith(".localhost"):
        headers.append(("strict-transport-security", "max-age=31536000"))
    return headers


def _end_with_parent() -> None:
    """Stops a worker cleanly when its parent process is gone, for whatever reason."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    loop, sentinel = asyncio.get_running_loop(), parent.sentinel

    def stop() -> None:
        loop.remove_reader(sentinel)
        signal.raise_signal(signal.SIGTERM)

    loop.add_reader(sentinel, stop)


def _config(factory: str, settings: Settings, host: str, port: int, workers: int) -> uvicorn.Config:
    return uvicorn.Config(
        # By name, because a worker that imported it before it answers its parent could be taken for dead.
        f"{__name__}:{factory}",
        factory=True,
        host=host,
        port=port,
        workers=workers,
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
        loop="uvloop",
        http=FastPathProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        headers=safety_headers(settings),
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_worker_healthcheck=_WORKER_HEALTHCHECK_S,
    )
