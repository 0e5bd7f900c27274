"""The OpenAPI documents: whole, committed, and made of what the routes declare."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from plainsql_server.http.app.contract import Contract, Parameter
from plainsql_server.http.app.openapi import openapi_document
from plainsql_server.http.app.routes import Route, open_route
from plainsql_server.http.server.error_codes import CODES
from plainsql_server.http.server.responses import Response
from server.tests.openapi import FOLDER, as_text, documents
from server.tests.test_completeness import declared_routes, undescribed

pytestmark = pytest.mark.unit

DOCUMENTS = documents()
METHODS = {"get", "post", "patch", "delete"}


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "$ref":
                yield each
            yield from refs(each)
    elif isinstance(value, list):
        for each in value:
            yield from refs(each)


@pytest.mark.parametrize("plane", DOCUMENTS)
def test_the_committed_document_is_that_of_the_routes(plane: str) -> None:
    stored = (FOLDER / f"{plane}.json").read_text(encoding="utf-8")
    assert stored == as_text(DOCUMENTS[plane]), "stale: run `make openapi`"


async def test_every_route_is_in_its_planes_document_and_nothing_else_is() -> None:
    for plane, routes in (await declared_routes()).items():
        described = [(method.upper(), path) for method, path, _ in operations(DOCUMENTS[plane])]
        assert sorted(described) == sorted((route.method, route.path) for route in routes)


@pytest.mark.parametrize("plane", DOCUMENTS)
def test_references_and_components_of_the_document_match(plane: str) -> None:
    document = DOCUMENTS[plane]
    wanted = {ref.removeprefix("#/components/") for ref in refs(document)}
    found = {f"{kind}/{name}" for kind in ("schemas", "responses", "headers") for name in document["components"][kind]}
    # Descriptions of streams name these; OpenAPI has no word for what is in a stream.
    streamed = {f"schemas/{name}" for name in ("LastLine",)}
    assert wanted <= found
    assert found - wanted <= streamed


@pytest.mark.parametrize("plane", DOCUMENTS)
def test_operations_have_unique_names_security_and_responses(plane: str) -> None:
    names = set()
    for method, path, operation in operations(DOCUMENTS[plane]):
        assert method in METHODS
        assert operation["summary"]
        assert operation["description"].startswith("Requires ")
        assert {"500", "503"} < set(operation["responses"])
        # The Neon driver reads errors with status 400 only.
        refused = "400" if path == "/sql" else "401"
        assert (refused in operation["responses"]) >= bool(operation["security"])
        assert ("401" in operation["responses"]) == (bool(operation["security"]) and path != "/sql")
        names.add(operation["operationId"])
    assert len(names) == len(list(operations(DOCUMENTS[plane])))
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)


@pytest.mark.parametrize("plane", DOCUMENTS)
def test_every_schema_is_one_and_every_example_fits_its_own(plane: str) -> None:
    document = DOCUMENTS[plane]
    for name in document["components"]["schemas"]:
        jsonschema_rs.Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"})
    for _, path, operation in operations(document):
        for media in operation.get("requestBody", {"content": {}})["content"].values():
            fits = jsonschema_rs.Draft202012Validator({**document, **media["schema"]})
            assert media["examples"], path
            assert all(fits.is_valid(example["value"]) for example in media["examples"].values()), path


async def test_every_field_of_a_body_option_or_answer_has_a_description() -> None:
    for routes in (await declared_routes()).values():
        for route in routes:
            contract = route.contract
            for model in (contract.body, contract.options):
                if isinstance(model, type):
                    assert undescribed(model) == [], model


def test_the_common_codes_are_in_every_document_with_what_they_mean() -> None:
    for document in DOCUMENTS.values():
        text = as_text(document)
        for code in ("unauthenticated", "rate_limited", "service_failure"):
            assert f"`{code}`: {CODES[code].when}" in text


async def nothing(*_: object) -> Response:
    raise AssertionError("never called")


def route(**contract: Any) -> Route:
    declared: dict[str, Any] = {"answers": {204: None}, "errors": ()} | contract
    return open_route("GET", "/x", "Something", nothing, contract=Contract(**declared))


def test_a_path_and_its_contract_must_name_the_same() -> None:
    with pytest.raises(ValueError, match="what is in the path"):
        route(path=Parameter("id", "Which.", {"type": "string"}, "1"))


def test_an_unknown_error_code_cannot_be_declared() -> None:
    with pytest.raises(KeyError, match="no_such_code"):
        openapi_document("test", "A test's", [route(errors=("no_such_code",))])


def test_a_model_of_answers_has_every_field_required_but_those_that_may_be_left_out() -> None:
    class Inner(msgspec.Struct, omit_defaults=True):
        always: int
        sometimes: int = 0

    class Outer(msgspec.Struct):
        inner: list[Inner]
        success: bool = True

    schemas = openapi_document("test", "A test's", [route(answers={200: Outer})])["components"]["schemas"]
    assert schemas["Outer"]["required"] == ["inner", "success"]
    assert schemas["Inner"]["required"] == ["always"]
