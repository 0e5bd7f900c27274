"""The data plane's routes beside queries and transactions: what a database holds, can do, and how fast it is.

Owns the list. What makes scratch objects needs the scope write, whatever its method is called.
"""

from plainsql_server.core.principal import Scope
from plainsql_server.data_plane.bench import Benchmarks
from plainsql_server.data_plane.capabilities import Capabilities
from plainsql_server.data_plane.ground import Ways
from plainsql_server.data_plane.reset import Resets
from plainsql_server.data_plane.storage import StorageTests
from plainsql_server.data_plane.tables import Tables
from plainsql_server.directory.connection import Directory
from plainsql_server.http.bench import BenchRoutes
from plainsql_server.http.capabilities import CapabilitiesRoutes
from plainsql_server.http.reset import ResetRoutes
from plainsql_server.http.routes import Route, scoped_route
from plainsql_server.http.storage import StorageRoutes
from plainsql_server.http.tables import TablesRoutes
from plainsql_server.limits.permits import Permits


def banner_routes(directory: Directory, ways: Ways, permits: Permits) -> list[Route]:
    """Every banner route that is about a database."""
    capabilities = CapabilitiesRoutes(Capabilities(ways))
    storage = StorageRoutes(StorageTests(ways.visits, ways.scratches))
    return [
        scoped_route("GET", "/tables", Scope.READ, "List tables", TablesRoutes(Tables(ways.visits)).get),
        scoped_route("GET", "/bench", Scope.WRITE, "Run a benchmark", BenchRoutes(Benchmarks(ways, permits)).get),
        scoped_route("GET", "/capabilities", Scope.READ, "Feature matrix", capabilities.get),
        scoped_route("GET", "/capabilities/{name}", Scope.WRITE, "Run the probe called {name}", capabilities.get_one),
        scoped_route("GET", "/storage/test", Scope.WRITE, "Storage round-trip test", storage.get),
        scoped_route(
            "POST", "/admin/reset", Scope.ADMIN, "Wipe all data", ResetRoutes(Resets(ways.visits, directory)).post
        ),
    ]
