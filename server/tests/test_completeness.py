"""What must not be forgotten when something is added: scopes, statuses, documentation.

Reads the declarations themselves: the routes that the assembly makes, the classes that the source defines,
the errors that it raises. Every check is also shown something that it must complain about.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, get_type_hints

import msgspec
import psycopg.errors
import pytest
from msgspec import Meta

import plainsql_server
from plainsql_server.assembly import Observer, build_control_application, build_data_application
from plainsql_server.core import errors
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.principal import Scope
from plainsql_server.engine.connection.sqlstate import condition_name
from plainsql_server.http.app.contract import Contract, Parameter
from plainsql_server.http.app.routes import Route, known_callers_route, open_route, scoped_route
from plainsql_server.http.server.error_codes import CODES, OPERATORS_CODES
from plainsql_server.http.server.errors import STATUS_OF_CLASS, STATUS_OF_CODE
from plainsql_server.http.server.responses import Response
from plainsql_server.settings import Settings

pytestmark = pytest.mark.unit

SOURCE = Path(plainsql_server.__file__).parent

# What anybody may ask without a key.
OPEN_ROUTES = frozenset(
    ("GET", path)
    for path in (
        "/",
        "/health",
        "/health/live",
        "/health/ready",
        "/openapi.json",
        "/docs",
        "/docs/docs.js",
        "/docs/docs.css",
        "/docs/page.css",
        "/guides/{name}",
        "/console",
        "/console/",
        "/console/{name}",
    )
)

# What any valid key or session may ask, whatever its scopes.
KNOWN_CALLERS_ROUTES = frozenset(
    {
        ("POST", "/v1/session"),
        ("POST", "/v1/session/refresh"),
        ("DELETE", "/v1/session"),
        ("GET", "/v1/organizations/current"),
        # Each tool needs the scope of what it does.
        ("POST", "/mcp"),
    }
)

# Codes whose status the contract gives and which nothing raises yet. The list only shrinks.
NOT_RAISED_YET: frozenset[str] = frozenset()

# Alembic runs these itself; they define nothing that others could use. The last one needs the extension modules.
_NOT_IMPORTABLE = ("plainsql_server.directory.migrations", "plainsql_server.__main__", "plainsql_server.lane.learning")


async def declared_routes() -> dict[str, Sequence[Route]]:
    """The routes of each plane, as the assembly makes them; nothing answers at this directory."""
    settings = Settings(directory_dsn="host=/nonexistent dbname=none")
    planes = {"data": build_data_application, "control": build_control_application}
    routes: dict[str, Sequence[Route]] = {}
    for name, build in planes.items():
        async with build(settings, Observer())._lifespan() as (table, *_):
            routes[name] = table.routes
    return routes


def routes_without_scope(routes: Iterable[Route]) -> list[str]:
    """The routes that need no scope without being on the list of those that may."""
    return [
        f"{route.method} {route.path}"
        for route in routes
        if not isinstance(route.scope, Scope)
        and (route.method, route.path) not in (OPEN_ROUTES if route.scope is None else KNOWN_CALLERS_ROUTES)
    ]


def error_classes() -> list[type[ServiceError]]:
    """Every class of errors in the source, wherever it is defined."""
    for module in pkgutil.walk_packages([str(SOURCE)], "plainsql_server."):
        if not module.name.startswith(_NOT_IMPORTABLE):
            importlib.import_module(module.name)
    return [kind for kind in _descendants(ServiceError) if kind.__module__.startswith("plainsql_server")]


def _descendants(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)


def classes_without_status(kinds: Iterable[type[ServiceError]]) -> list[str]:
    """The classes that the table of statuses lacks; it is asked for the exact class."""
    return [kind.__name__ for kind in kinds if kind not in STATUS_OF_CLASS]


def drawn_classes(docstring: str) -> list[str]:
    """The classes in a tree drawn with ├ and └."""
    return re.findall(r"^\s*[├└] (\w+)", docstring, re.MULTILINE)


def raised_codes(text: str, kinds: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(class, code) of every error that a source text makes with its code written out."""
    wanted = set(kinds)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in wanted and node.args:
            code = node.args[0]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                yield node.func.id, code.value


@cache
def all_raised_codes() -> set[tuple[str, str]]:
    names = [kind.__name__ for kind in STATUS_OF_CLASS]
    files = SOURCE.rglob("*.py")
    # An internal error's argument is no code; it has one code for all.
    raised = {pair for file in files for pair in raised_codes(file.read_text(encoding="utf-8"), names)}
    return {(kind, code) for kind, code in raised if kind != "InternalError"}


def undescribed(model: type[msgspec.Struct]) -> list[str]:
    """The fields of a model that do not say what they are for."""
    hints = get_type_hints(model, include_extras=True)
    return [name for name in model.__struct_fields__ if not _description(hints[name])]


def _description(hint: object) -> str:
    metas = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta)]
    return " ".join(meta.description or "" for meta in metas).strip()


def engine_codes() -> set[str]:
    """The names of all conditions that the engine can report."""
    found = [getattr(psycopg.errors, name) for name in dir(psycopg.errors)]
    states = [getattr(each, "sqlstate", None) for each in found if isinstance(each, type)]
    return {condition_name(state) for state in states if isinstance(state, str)}


async def test_every_route_declares_the_scope_that_it_needs() -> None:
    planes = await declared_routes()
    assert all(planes.values())
    assert {name: routes_without_scope(routes) for name, routes in planes.items()} == {"data": [], "control": []}


async def test_every_open_route_is_a_route() -> None:
    declared = {(route.method, route.path) for routes in (await declared_routes()).values() for route in routes}
    assert declared >= OPEN_ROUTES | KNOWN_CALLERS_ROUTES


async def test_every_route_has_a_purpose_and_is_declared_once() -> None:
    for routes in (await declared_routes()).values():
        assert all(route.purpose.strip() for route in routes)
        assert len({(route.method, route.path) for route in routes}) == len(routes)


def test_a_route_without_a_scope_is_noticed() -> None:
    async def answer(*_: object) -> Response:
        raise AssertionError("never called")

    nothing = Contract(answers={204: None}, errors=())
    with_id = Contract(answers={204: None}, errors=(), path=Parameter("id", "Which.", {"type": "string"}, "key_1"))
    closed = scoped_route("GET", "/tables", Scope.READ, "List tables", answer, contract=nothing)
    forgotten = open_route("POST", "/health", "Open by mistake", answer, contract=nothing)
    loose = known_callers_route("DELETE", "/v1/keys/{id}", "Needs no scope by mistake", answer, contract=with_id)
    assert routes_without_scope([closed, forgotten, loose]) == ["POST /health", "DELETE /v1/keys/{id}"]


def test_every_class_of_errors_has_a_status() -> None:
    kinds = error_classes()
    assert len(kinds) >= 7
    assert classes_without_status(kinds) == []


def test_a_class_without_a_status_is_detected() -> None:
    forgotten = type("ForgottenError", (errors.RequestError,), {})
    assert classes_without_status([errors.RequestError, forgotten]) == ["ForgottenError"]


def test_statuses_are_those_of_the_contract() -> None:
    statuses = {*STATUS_OF_CLASS.values(), *STATUS_OF_CODE.values()}
    assert statuses <= {200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 503}


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    defined = [
        name for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ServiceError) and value is not ServiceError
    ]  # fmt: skip
    assert drawn_classes(errors.__doc__ or "") == defined
    assert {kind.__name__ for kind in error_classes()} == set(defined)


def test_a_class_missing_from_the_diagram_is_detected() -> None:
    assert drawn_classes("ServiceError\n    ├ FirstError  one\n    └ LastError   two, not ThirdError\n") == [
        "FirstError", "LastError",
    ]  # fmt: skip


def test_every_code_with_a_status_of_its_own_is_raised_somewhere() -> None:
    raised = {code for _, code in all_raised_codes()}
    assert set(STATUS_OF_CODE) - raised == NOT_RAISED_YET


def test_the_table_of_codes_is_what_the_source_raises() -> None:
    raised = {(kind, code) for kind, code in all_raised_codes() if code not in OPERATORS_CODES}
    listed = {(each.kind.__name__, code) for code, each in CODES.items() if each.kind is not errors.InternalError}
    assert listed == raised
    assert {code for _, code in all_raised_codes()} >= OPERATORS_CODES


def test_codes_are_snake_case_and_one_code_has_one_status() -> None:
    statuses: dict[str, set[int]] = {}
    status_of_name = {kind.__name__: status for kind, status in STATUS_OF_CLASS.items()}
    for kind, code in all_raised_codes():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code)
        statuses.setdefault(code, set()).add(STATUS_OF_CODE.get(code) or status_of_name[kind])
    assert {code: found for code, found in statuses.items() if len(found) > 1} == {}


def test_a_raised_code_is_found_in_the_source() -> None:
    text = 'raise RequestError("a_code", "x")\nreturn LimitError(\n    "b_code", f"{x}",\n)\nOtherError("c")'
    assert list(raised_codes(text, ["RequestError", "LimitError"])) == [
        ("RequestError", "a_code"), ("LimitError", "b_code"),
    ]  # fmt: skip


def test_no_condition_of_the_engine_takes_a_status_that_is_meant_for_a_code_of_ours() -> None:
    names = engine_codes()
    assert "undefined_table" in names
    assert names & set(STATUS_OF_CODE) == set()


def test_every_setting_has_a_description() -> None:
    assert undescribed(Settings) == []


def test_a_setting_without_a_description_is_noticed() -> None:
    class Sample(msgspec.Struct):
        described: Annotated[int, Meta(description="Something.")]
        bare: int
        empty: Annotated[int, Meta(description=" ")]
        bounded: Annotated[int, Meta(ge=0)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Sample", Sample)
        assert undescribed(Sample) == ["bare", "empty", "bounded"]
