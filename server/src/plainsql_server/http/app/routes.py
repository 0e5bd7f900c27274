"""Routes and the table that finds them.

    scoped_route("GET", "/v1/keys/{id}", Scope.ADMIN, "Show an API key", keys.get, contract=shown)

Every route must declare who may call it and its contract. If the contract has a body, the application reads it before
it calls the handler, which finds it in `request.body`. A path may have one parameter, such as `{id}`, which the handler
finds in `request.path_parameter`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.http.app.contract import Contract
from plainsql_server.http.app.planes import OtherPlane
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response


class Caller(Enum):
    """Who may call a route that requires a credential but no particular scope."""

    ANY = "any valid key or session"
    ANY_KEY = "any valid key"
    ANY_SESSION = "any valid session"


Answer = Callable[[Request, Principal], Awaitable[Response]]
AnswerAnyone = Callable[[Request], Awaitable[Response]]
# Returns the key or session token of a request. Raises AccessError if there is none.
ReadSecret = Callable[[Request], str]


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
    # Where the secret is, if not in the Authorization header.
    read_secret: ReadSecret | None = None
    # The media type of the body that it takes; None if it takes none.
    body_type: bytes | None = None

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
    read_secret: ReadSecret | None = None,
) -> Route:
    """A route that requires a key or session with a scope."""
    return Route(
        method, path, scope, purpose, answer, _never, contract, answers_queries,
        read_secret=read_secret, body_type=contract.body_type,
    )  # fmt: skip


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
    return Route(
        method, path, caller, purpose, answer, _never, contract, key_in_body=key_in_body, body_type=contract.body_type
    )  # fmt: skip


async def _never(*_: object) -> Response:
    raise AssertionError("the other kind of answer belongs to this route")


class _Template:
    """A path with a parameter, and its routes by method."""

    __slots__ = ("_has_slashes", "_prefix", "_suffix", "methods")

    def __init__(self, path: str, has_slashes: bool) -> None:
        self._prefix, _, rest = path.partition("{")
        self._suffix = rest.partition("}")[2]
        self._has_slashes = has_slashes
        self.methods: dict[str, Route] = {}

    def parameter(self, path: str) -> str | None:
        """The value of the parameter in a path; None if the path does not match."""
        end = len(path) - len(self._suffix)
        if end <= len(self._prefix) or not path.startswith(self._prefix) or not path.endswith(self._suffix):
            return None
        value = path[len(self._prefix) : end]
        if self._has_slashes:
            return value if value.strip("/") else None
        return None if "/" in value else value


class RouteTable:
    """The routes of one plane. One dictionary lookup finds a path without a parameter; the others are tried in turn."""

    def __init__(self, routes: Sequence[Route], other: OtherPlane | None = None) -> None:
        self.routes = tuple(routes)
        self._other = other
        self._by_path: dict[str, dict[str, Route]] = {}
        self._templates: dict[str, _Template] = {}
        for route in routes:
            methods = self._methods(route)
            methods[route.method] = route
            if route.method == "GET":
                # HEAD is GET without the body, which the server omits.
                methods["HEAD"] = route

    def find(self, request: Request) -> Route:
        """The route for a request, whose path parameter it sets.

        Raises AccessError for an unknown path, RequestError for a wrong method.
        """
        path = request.path
        methods = self._by_path.get(path)
        if methods is None:
            request.path_parameter, methods = self._match(path)
        if not methods:
            raise self._not_found(path)
        route = methods.get(request.method)
        if route is None:
            names = " or ".join(sorted(methods))
            raise RequestError("method_not_allowed", f"{path} accepts {names}, not {request.method}.")
        return route

    def _not_found(self, path: str) -> AccessError:
        other = self._other
        if other is not None and other.serves(path):
            message = f"There is no route {path} here: it is on the {other.name} plane."
            return AccessError("route_not_found", message, hint=f"Send the request to {other.url}{path}.")
        return AccessError("route_not_found", f"There is no route {path}.", hint="GET / lists the routes.")

    def methods_of(self, path: str) -> list[str]:
        """The methods that a path accepts. Empty if there is no such path."""
        return sorted(self._by_path.get(path) or self._match(path)[1])

    def _methods(self, route: Route) -> dict[str, Route]:
        parameter = route.contract.path
        if parameter is None:
            return self._by_path.setdefault(route.path, {})
        template = self._templates.get(route.path)
        if template is None:
            template = self._templates[route.path] = _Template(route.path, parameter.has_slashes)
        return template.methods

    def _match(self, path: str) -> tuple[str, dict[str, Route]]:
        for template in self._templates.values():
            value = template.parameter(path)
            if value is not None:
                return value, template.methods
        return "", {}
