"""Compares whatever tests send and get with the OpenAPI documents: a route, status or field that is in none fails.

Owns the comparing. It sits in the tests' own HTTP client, so that every end-to-end test is also a test of the
documents. An answer may have no field that its schema does not name, though the document itself leaves that open, so
that fields can be added.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import httpx
import jsonschema_rs

from server.tests.events import Event, EventParser
from server.tests.openapi import FOLDER

Json = dict[str, Any]


class Documented:
    """The document of one plane, as a judge of requests and answers."""

    def __init__(self, plane: str) -> None:
        self._document: Json = json.loads((FOLDER / f"{plane}.json").read_text(encoding="utf-8"))
        self._strict = strict(self._document)
        self._paths = {path: re.compile(pattern_of(path)) for path in self._document["paths"]}
        self._judges: dict[str, jsonschema_rs.Draft202012Validator] = {}

    def check(self, response: httpx.Response) -> None:
        """Fails unless the document tells of this answer, and, where it is a success, of the request."""
        request = response.request
        if request.method == "OPTIONS" or response.status_code == 405:
            return
        operation = self._operation("GET" if request.method == "HEAD" else request.method, request.url.path)
        if operation is None:
            assert response.status_code in (400, 404), f"{request.method} {request.url.path} is in no document"
            return
        self._check_answer(response, self._described(operation, response))
        if response.status_code < 300:
            self._check_request(request, operation)

    def _operation(self, method: str, path: str) -> Json | None:
        # As the service does, a path without anything to fill in comes first.
        matching = sorted((each for each, pattern in self._paths.items() if pattern.fullmatch(path)), key=len)
        exact = [each for each in matching if each == path]
        for each in exact or matching:
            if (operation := self._document["paths"][each].get(method.lower())) is not None:
                found: Json = operation
                return found
        return None

    def _described(self, operation: Json, response: httpx.Response) -> Json:
        described: Json | None = operation["responses"].get(str(response.status_code))
        assert described is not None, f"{operation['operationId']} does not tell of {response.status_code}"
        return self._resolved(described)

    def _resolved(self, value: Json) -> Json:
        if "$ref" not in value:
            return value
        found: Any = self._document
        for step in value["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        resolved: Json = found
        return resolved

    def _check_answer(self, response: httpx.Response, described: Json) -> None:
        content_type = response.headers.get("content-type", "").partition(";")[0]
        if not content_type:
            assert "content" not in described, "a body is documented, and there is none"
            return
        assert content_type in described["content"], f"{content_type} is not documented"
        if response.request.method == "HEAD":
            return
        schema = described["content"][content_type]["schema"]
        if content_type == "application/json":
            self._classify(self._strict, schema, response.read())
        elif content_type == "text/event-stream":
            self._check_events(schema, EventParser().feed(response.read()))
        elif content_type == "application/x-ndjson":
            self._check_lines(response.read().splitlines())

    def _check_events(self, schema: Json, events: list[Event]) -> None:
        """Rows hold whatever was asked for; the other events are models."""
        models = {each["properties"]["event"]["const"]: each["properties"]["data"] for each in schema["anyOf"]}
        for event in events:
            assert event.type in models, f"the event {event.type} is not documented"
            if event.type != "row":
                self._classify(self._strict, models[event.type]["contentSchema"], event.data.encode())

    def _check_lines(self, lines: list[bytes]) -> None:
        """The first and the last, as the document describes them in words."""
        self._classify(self._strict, reference("StreamColumns"), lines[0])
        self._classify(self._strict, {"anyOf": [reference("LastLine"), reference("Failure")]}, lines[-1])

    def _check_request(self, request: httpx.Request, operation: Json) -> None:
        parameters = operation.get("parameters", ())
        options = {each["name"] for each in parameters if each["in"] == "query"}
        assert set(request.url.params) <= options, f"{operation['operationId']} tells of {sorted(options)} alone"
        content = operation.get("requestBody", {"content": {}})["content"]
        if "application/json" in content and request.content:
            self._classify(self._document, content["application/json"]["schema"], request.content)

    def _classify(self, document: Json, schema: Json, body: bytes) -> None:
        name = f"{document is self._strict} {json.dumps(schema)}"
        if name not in self._judges:
            self._judges[name] = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
        for error in self._judges[name].iter_errors(json.loads(body)):
            raise AssertionError(f"{error.instance_path}: {error.message[:500]}; the document has {schema}")


def reference(model: str) -> Json:
    return {"$ref": f"#/components/schemas/{model}"}


def strict(document: Json) -> Json:
    """The document with every model closed."""
    copy: Json = json.loads(json.dumps(document))
    for model in copy["components"]["schemas"].values():
        if "properties" in model:
            model["additionalProperties"] = False
    return copy


def pattern_of(path: str) -> str:
    """What a path of the document matches; {key} takes slashes, too."""
    pattern = re.escape(path).replace(r"\{id\}", "[^/]+").replace(r"\{name\}", "[^/]+").replace(r"\{key\}", ".+")
    assert "{" not in pattern, path
    return pattern


@cache
def documented(plane: str) -> Documented:
    return Documented(plane)


def comparing(urls: Mapping[str, str]) -> Callable[[httpx.Response], None]:
    """A hook for httpx that compares answers of these planes, by their addresses, with their documents."""
    planes = {httpx.URL(url).port: plane for plane, url in urls.items()}

    def compare(response: httpx.Response) -> None:
        plane = planes.get(response.request.url.port)
        if plane is not None:
            documented(plane).check(response)

    return compare
