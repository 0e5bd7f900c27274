"""The data plane's utility routes: tables, capabilities, benchmark, storage test and reset.

A route that creates temporary objects requires the scope `write`, even if its method is GET.
"""

from plainsql_server.core.principal import Scope
from plainsql_server.data_plane.diagnostics.bench import Benchmarks
from plainsql_server.data_plane.diagnostics.capabilities import CAPABILITIES, Capabilities
from plainsql_server.data_plane.diagnostics.probe_context import Executors
from plainsql_server.data_plane.diagnostics.storage import StorageTests
from plainsql_server.data_plane.reset import Resets
from plainsql_server.data_plane.tables import Tables
from plainsql_server.directory.connection import Directory
from plainsql_server.http.app.contract import Contract, Parameter
from plainsql_server.http.app.etags import KNOWN_VERSION
from plainsql_server.http.app.routes import Route, scoped_route
from plainsql_server.http.data.bench import BenchAnswer, BenchOptions, BenchRoutes
from plainsql_server.http.data.capabilities import CapabilitiesAnswer, CapabilitiesRoutes, ProbeAnswer
from plainsql_server.http.data.reset import ResetAnswer, ResetBody, ResetRoutes
from plainsql_server.http.data.routes import DATABASE, ENGINE_ERRORS
from plainsql_server.http.data.storage import StorageAnswer, StorageFailure, StorageRoutes
from plainsql_server.http.data.tables import TablesAnswer, TablesOptions, TablesRoutes
from plainsql_server.limits.permits import Permits

_SERVICE_ERRORS = (*ENGINE_ERRORS, "statement_timeout")
_NAME = Parameter(
    "name",
    "The name of a capability. GET /capabilities lists them.",
    {"type": "string", "enum": [*CAPABILITIES]},
    "streaming",
)

_TABLES = Contract(
    options=TablesOptions,
    headers=(DATABASE, KNOWN_VERSION),
    answers={200: TablesAnswer, 304: None},
    errors=(*_SERVICE_ERRORS, "result_too_large"),
    runs_sql=True,
)
_BENCH = Contract(
    options=BenchOptions,
    headers=(DATABASE,),
    answers={200: BenchAnswer},
    errors=(*_SERVICE_ERRORS, "bench_running", "too_few_connections"),
    runs_sql=True,
)
_CAPABILITIES = Contract(answers={200: CapabilitiesAnswer}, errors=())
_PROBE = Contract(
    path=_NAME,
    headers=(DATABASE,),
    answers={200: ProbeAnswer},
    errors=(*_SERVICE_ERRORS, "capability_not_found", "too_few_connections"),
    runs_sql=True,
)
_STORAGE = Contract(
    headers=(DATABASE,),
    answers={200: StorageAnswer, 503: StorageFailure},
    errors=(*_SERVICE_ERRORS, "storage_failed"),
)
_RESET = Contract(
    body=ResetBody,
    # A name that doesn't exist, so that trying the example does no harm.
    examples={"A database": {"database": "no-such-database", "confirm": "no-such-database"}},
    headers=(DATABASE,),
    answers={200: ResetAnswer},
    errors=(*_SERVICE_ERRORS, "not_confirmed", "reset_timed_out", "wrong_state"),
    runs_sql=True,
)


def utility_routes(directory: Directory, executors: Executors, permits: Permits) -> list[Route]:
    """Every utility route that works on a database."""
    capabilities = CapabilitiesRoutes(Capabilities(executors))
    storage = StorageRoutes(StorageTests(executors.connections, executors.schemas))
    return [
        scoped_route(
            "GET", "/tables", Scope.READ, "List tables", TablesRoutes(Tables(executors.connections)).get,
            contract=_TABLES,
        ),
        scoped_route(
            "GET", "/bench", Scope.WRITE, "Run a benchmark", BenchRoutes(Benchmarks(executors, permits)).get,
            contract=_BENCH,
        ),
        scoped_route(
            "GET", "/capabilities", Scope.READ, "Feature matrix", capabilities.get, contract=_CAPABILITIES
        ),
        scoped_route(
            "GET", "/capabilities/{name}", Scope.WRITE, "Run the probe called {name}", capabilities.get_one,
            contract=_PROBE,
        ),
        scoped_route(
            "GET", "/storage/test", Scope.WRITE, "Storage round-trip test", storage.get, contract=_STORAGE
        ),
        scoped_route(
            "POST", "/admin/reset", Scope.ADMIN, "Wipe all data",
            ResetRoutes(Resets(executors.connections, directory)).post,
            contract=_RESET,
        ),
    ]  # fmt: skip
