"""The data plane's routes beside queries and transactions: what a database holds, can do, and how fast it is.

Owns the list. What makes scratch objects needs the scope write, whatever its method is called.
"""

from plainsql_server.core.principal import Scope
from plainsql_server.data_plane.reset import Resets
from plainsql_server.data_plane.tables import Tables
from plainsql_server.data_plane.visits import Visits
from plainsql_server.directory.connection import Directory
from plainsql_server.http.reset import ResetRoutes
from plainsql_server.http.routes import Route, scoped_route
from plainsql_server.http.tables import TablesRoutes


def banner_routes(directory: Directory, visits: Visits) -> list[Route]:
    """Every banner route that is about a database."""
    return [
        scoped_route("GET", "/tables", Scope.READ, "List tables", TablesRoutes(Tables(visits)).get),
        scoped_route("POST", "/admin/reset", Scope.ADMIN, "Wipe all data", ResetRoutes(Resets(visits, directory)).post),
    ]
