"""The parameter in a path, and the routes that have none."""

import pytest

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.http.app.contract import Contract, Parameter
from plainsql_server.http.app.routes import Route, RouteTable, open_route
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response

pytestmark = pytest.mark.unit


async def answer(_: Request) -> Response:
    return Response(200, b"")


def route(path: str, method: str = "GET", *, has_slashes: bool = False) -> Route:
    name = path.partition("{")[2].partition("}")[0]
    parameter = Parameter(name, "", {}, "", has_slashes=has_slashes) if name else None
    return open_route(method, path, "", answer, contract=Contract(answers={200: None}, errors=(), path=parameter))


TABLE = RouteTable(
    [
        route("/things"),
        route("/things/{id}"),
        route("/things/{id}", "DELETE"),
        route("/things/{id}/turn", "POST"),
        route("/deep/down/{name}"),
        route("/v1/requests/{key}", has_slashes=True),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found", "parameter"),
    [
        ("GET", "/things", "/things", ""),
        ("HEAD", "/things", "/things", ""),
        ("GET", "/things/a", "/things/{id}", "a"),
        ("DELETE", "/things/a", "/things/{id}", "a"),
        ("POST", "/things/turn/turn", "/things/{id}/turn", "turn"),
        ("GET", "/deep/down/b", "/deep/down/{name}", "b"),
        ("GET", "/v1/requests/a/b", "/v1/requests/{key}", "a/b"),
        ("GET", "/v1/requests//a", "/v1/requests/{key}", "/a"),
        ("GET", "/things/{id}", "/things/{id}", "{id}"),
    ],
)
def test_a_handler_gets_the_parameter_of_its_route(method: str, path: str, found: str, parameter: str) -> None:
    request = Request(method, path, b"", {})
    assert TABLE.find(request).path == found
    assert request.path_parameter == parameter


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/things/",
        "/things/a/",
        "/things/a/b",
        "/things//turn",
        "/things/a/turn/",
        "/v1/requests/",
        "/v1/requests//",
    ],
)
def test_a_path_that_fits_no_route_is_unknown(path: str) -> None:
    with pytest.raises(AccessError):
        TABLE.find(Request("GET", path, b"", {}))
    assert TABLE.methods_of(path) == []


def test_a_wrong_method_is_refused_by_name() -> None:
    with pytest.raises(RequestError) as refused:
        TABLE.find(Request("PUT", "/things/a", b"", {}))
    assert refused.value.message == "/things/a accepts DELETE or GET or HEAD, not PUT."
    assert TABLE.methods_of("/things/a") == ["DELETE", "GET", "HEAD"]
