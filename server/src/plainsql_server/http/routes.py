"""Routes: a method, a path, the scope that a caller needs, and what it is for.

Owns the finding of a route. A route cannot be declared without saying who may call it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response

Handler = Callable[[Request, Principal | None], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `scope` is None only for routes that are open to everyone."""

    method: str
    path: str
    scope: Scope | None
    purpose: str
    handle: Handler
    # A query's failure is told with the fields of a query's answer, so that clients read one shape.
    answers_queries: bool = False


class RouteTable:
    """The routes of one plane, found by a dictionary look-up."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            self._by_path.setdefault(route.path, {})[route.method] = route

    def find(self, method: str, path: str) -> Route:
        """The route. Raises AccessError for an unknown path, RequestError for a wrong method."""
        methods = self._by_path.get(path)
        if methods is None:
            raise AccessError("route_not_found", f"There is no route {path}.", hint="GET / lists the routes.")
        route = methods.get(method)
        if route is None:
            raise RequestError("method_not_allowed", f"{path} takes {' or '.join(sorted(methods))}, not {method}.")
        return route

    def methods_of(self, path: str) -> list[str]:
        """The methods that a path takes; none if there is no such path."""
        return sorted(self._by_path.get(path, ()))
