"""Routes: a method, a path, the scope that a caller needs, and what it is for.

Owns the finding of a route. A route cannot be declared without saying who may call it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response

Answer = Callable[[Request, Principal], Awaitable[Response]]
AnswerAnyone = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One route: open to everyone, or for principals with a scope. Made by `open_route` and `scoped_route`."""

    method: str
    path: str
    scope: Scope | None
    purpose: str
    answer: Answer
    answer_anyone: AnswerAnyone
    # A query's failure is told with the fields of a query's answer, so that clients read one shape.
    answers_queries: bool = False


def open_route(method: str, path: str, purpose: str, answer: AnswerAnyone) -> Route:
    """A route that needs no key."""
    return Route(method, path, None, purpose, _never, answer)


def scoped_route(
    method: str, path: str, scope: Scope, purpose: str, answer: Answer, *, answers_queries: bool = False
) -> Route:
    """A route that needs a key with a scope."""
    return Route(method, path, scope, purpose, answer, _never, answers_queries)


async def _never(*_: object) -> Response:
    raise AssertionError("the other kind of answer belongs to this route")


class RouteTable:
    """The routes of one plane, found by a dictionary look-up."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._by_path: dict[str, dict[str, Route]] = {}
        self._named: dict[str, dict[str, Route]] = {}
        for route in routes:
            fixed, is_named, _ = route.path.partition("{")
            methods = (self._named if is_named else self._by_path).setdefault(fixed, {})
            methods[route.method] = route
            if route.method == "GET":
                # HEAD is GET without the body, which the server leaves out.
                methods["HEAD"] = route

    def find(self, method: str, path: str) -> Route:
        """The route. Raises AccessError for an unknown path, RequestError for a wrong method."""
        methods = self._methods(path)
        if not methods:
            raise AccessError("route_not_found", f"There is no route {path}.", hint="GET / lists the routes.")
        route = methods.get(method)
        if route is None:
            raise RequestError("method_not_allowed", f"{path} takes {' or '.join(sorted(methods))}, not {method}.")
        return route

    def methods_of(self, path: str) -> list[str]:
        """The methods that a path takes; none if there is no such path."""
        return sorted(self._methods(path))

    def _methods(self, path: str) -> dict[str, Route]:
        if methods := self._by_path.get(path):
            return methods
        # What the caller names comes last, and may have slashes in it.
        return next((methods for prefix, methods in self._named.items() if path.startswith(prefix)), {})
