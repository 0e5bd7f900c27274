"""Routes and the table that finds them.

    scoped_route("GET", "/v1/keys/{id}", Scope.ADMIN, "Show an API key", keys.get, contract=shown)

Every route must declare who may call it and its contract. A path may have a segment `{id}` or `{name}`, which matches
any text without a slash.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.http.app.contract import Contract
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response


class Caller(Enum):
    """Who may call a route that requires a credential but no particular scope."""

    ANY = "any valid key or session"
    ANY_KEY = "any valid key"
    ANY_SESSION = "any valid session"


Answer = Callable[[Request, Principal], Awaitable[Response]]
AnswerAnyone = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """A route: public, or for principals with a scope. Create it with `open_route` or `scoped_route`."""

    method: str
    path: str
    scope: Scope | Caller | None
    purpose: str
    answer: Answer
    answer_anyone: AnswerAnyone
    contract: Contract
    # Whether failures also have the fields of a query's answer, so clients can read both the same way.
    answers_queries: bool = False
    # Whether the key may be in the body's field `api_key`, if there is no Authorization header.
    key_in_body: bool = False

    def __post_init__(self) -> None:
        declared = self.contract.path
        if ("{" in self.path) != (declared is not None) or (declared and f"{{{declared.name}}}" not in self.path):
            raise ValueError(f"{self.path}: the contract must describe what is in the path, and nothing else")


def open_route(method: str, path: str, purpose: str, answer: AnswerAnyone, *, contract: Contract) -> Route:
    """A route that requires no key."""
    return Route(method, path, None, purpose, _never, answer, contract)


def scoped_route(
    method: str,
    path: str,
    scope: Scope,
    purpose: str,
    answer: Answer,
    *,
    contract: Contract,
    answers_queries: bool = False,
) -> Route:
    """A route that requires a key or session with a scope."""
    return Route(method, path, scope, purpose, answer, _never, contract, answers_queries)


def known_callers_route(
    method: str,
    path: str,
    purpose: str,
    answer: Answer,
    *,
    contract: Contract,
    caller: Caller = Caller.ANY,
    key_in_body: bool = False,
) -> Route:
    """A route that requires a key or session, with any scopes. Its handler rejects the kind that `caller` excludes."""
    return Route(method, path, caller, purpose, answer, _never, contract, key_in_body=key_in_body)


async def _never(*_: object) -> Response:
    raise AssertionError("the other kind of answer belongs to this route")


class RouteTable:
    """The routes of one plane. One dictionary lookup finds a route; paths with an {id} need a second one.

    A path that ends with {key} matches everything that follows, including slashes.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            methods = self._by_path.setdefault(route.path, {})
            methods[route.method] = route
            if route.method == "GET":
                # HEAD is GET without the body, which the server omits.
                methods["HEAD"] = route
        self._with_id = any("{" in route.path for route in routes)

    def find(self, method: str, path: str) -> Route:
        """The route for a request. Raises AccessError for an unknown path, RequestError for a wrong method."""
        methods = self._by_path.get(path) or self._methods_with_id(path)
        if not methods:
            raise AccessError("route_not_found", f"There is no route {path}.", hint="GET / lists the routes.")
        route = methods.get(method)
        if route is None:
            raise RequestError("method_not_allowed", f"{path} accepts {' or '.join(sorted(methods))}, not {method}.")
        return route

    def methods_of(self, path: str) -> list[str]:
        """The methods that a path accepts. Empty if there is no such path."""
        return sorted(self._by_path.get(path) or self._methods_with_id(path))

    def _methods_with_id(self, path: str) -> Mapping[str, Route]:
        segments = path.split("/")
        if len(segments) == NAME_SEGMENT + 1 and segments[NAME_SEGMENT]:
            return self._by_path.get("/".join([*segments[:NAME_SEGMENT], "{name}"]), {})
        if not self._with_id or len(segments) <= ID_SEGMENT or not any(segments[ID_SEGMENT:]):
            return {}
        # An id is never empty, but a key may begin with a slash.
        segments[ID_SEGMENT] = segments[ID_SEGMENT] and "{id}"
        return self._by_path.get("/".join(segments)) or self._by_path.get(
            "/".join([*segments[:ID_SEGMENT], "{key}"]), {}
        )


# The position of the id in every path that has one: /v1/keys/{id}/rotate.
ID_SEGMENT = 3
# The position of the name, in paths without a version: /capabilities/{name}.
NAME_SEGMENT = 2


def id_in_path(request: Request) -> str:
    """The {id} in the path of a request."""
    return request.path.split("/")[ID_SEGMENT]


def name_in_path(request: Request) -> str:
    """The {name} in the path of a request."""
    return request.path.split("/")[NAME_SEGMENT]
