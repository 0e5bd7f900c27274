"""Which plane serves a path, compared with the documents of both."""

import json

import pytest

from plainsql_server.core.errors import AccessError
from plainsql_server.http.app.planes import OtherPlane
from plainsql_server.http.app.routes import RouteTable
from plainsql_server.http.server.requests import Request
from server.tests.openapi import FOLDER

pytestmark = pytest.mark.unit

PLANES = {name: OtherPlane(name, f"https://{name}.example") for name in ("data", "control")}


def paths_of(plane: str) -> set[str]:
    return set(json.loads((FOLDER / f"{plane}.json").read_text(encoding="utf-8"))["paths"])


@pytest.mark.parametrize(("plane", "other"), [("data", "control"), ("control", "data")])
def test_a_plane_serves_its_own_paths_and_no_others(plane: str, other: str) -> None:
    shared = paths_of("data") & paths_of("control")
    assert all(PLANES[plane].serves(path) for path in paths_of(plane) - shared)
    assert not any(PLANES[plane].serves(path) for path in paths_of(other) | {"/", "/docs", "/v1", "/v1/keysmith", "/x"})


def test_the_error_for_a_path_of_the_other_plane_names_its_address() -> None:
    table = RouteTable([], PLANES["control"])
    with pytest.raises(AccessError) as refused:
        table.find(Request("GET", "/v1/keys/key_1", b"", {}))
    assert refused.value.code == "route_not_found"
    assert refused.value.hint == "Send the request to https://control.example/v1/keys/key_1."
    with pytest.raises(AccessError) as unknown:
        table.find(Request("GET", "/nowhere", b"", {}))
    assert unknown.value.hint == "GET / lists the routes."
