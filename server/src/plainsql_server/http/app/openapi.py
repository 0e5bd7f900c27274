"""Generates the OpenAPI document of a plane from the contracts of its routes.

This module adds what all routes share: credentials, headers and common errors. Everything specific to a route is in its
contract.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from plainsql_server import VERSION
from plainsql_server.core.principal import Scope
from plainsql_server.http.app.contract import JSON_TYPE, Contract, Media, Model
from plainsql_server.http.app.routes import Route
from plainsql_server.http.app.stream_formats import LastLine, StreamColumns, StreamDone, StreamError
from plainsql_server.http.server.answers import Failure, QueryFailure
from plainsql_server.http.server.error_codes import CODES
from plainsql_server.http.server.errors import status_of_code

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_STREAM_MODELS: tuple[Model, ...] = (StreamColumns, StreamDone, LastLine, StreamError)
_EVENTS: Mapping[str, Model | None] = {
    "columns": StreamColumns, "row": None, "done": StreamDone, "error": StreamError,
}  # fmt: skip
_ANY_ROUTE = ("malformed_request", "service_failure", "shutting_down")
_KNOWN_CALLERS = ("unauthenticated", "forbidden", "rate_limited", "directory_unavailable", "overloaded")
_WITH_BODY = ("request_timeout", "request_too_large", "unsupported_content_type", "unsupported_content_encoding")
_COMMON = frozenset((*_ANY_ROUTE, *_KNOWN_CALLERS, *_WITH_BODY))
# PostgreSQL's condition names occur with these statuses, in addition to our own codes.
_ENGINE_STATUSES = frozenset({200, 400})

_HEADERS: Mapping[str, tuple[str, str]] = {
    "X-Request-Id": ("Identifies this request.", "^req_[0-9A-Za-z]{8,64}$"),
    "Server-Timing": ("Time spent in each stage, in milliseconds.", ""),
    "RateLimit-Policy": ("Your organization's rate limit: `q` requests per window of `w` seconds.", ""),
    "RateLimit": ("Requests left (`r`), and seconds until more become available (`t`).", ""),
    "Retry-After": ("Seconds to wait before you retry.", "^[0-9]+$"),
    "WWW-Authenticate": ("The required authentication scheme.", "^Bearer$"),
    "ETag": ("The version of this response. Send it back as If-None-Match.", ""),
    "Idempotency-Replayed": (
        "Present if this is the stored response to an earlier request with the same key.",
        "^true$",
    ),
}


def openapi_document(plane: str, description: str, routes: Sequence[Route]) -> Json:
    """The OpenAPI document. It is deterministic: routes appear in the order in which they are declared."""
    shapes = _Shapes(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, shapes)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"PlainSQL {plane} plane",
            "version": VERSION,
            "description": description,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": shapes.components,
            "responses": dict(sorted(shapes.responses.items())),
            "headers": {name: _header(*header) for name, header in _HEADERS.items() if name in shapes.headers},
            "securitySchemes": {
                "credential": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key (`svc_k_…`) or a session token (`svc_s_…`).",
                }
            },
        },
    }


class _Shapes:
    """The models of all routes as JSON Schema components."""

    def __init__(self, routes: Sequence[Route]) -> None:
        taken = [route.contract.body for route in routes]
        given: list[object] = [Failure]
        for route in routes:
            given += [*route.contract.answers.values(), route.contract.other_answer]
            given += [route.contract.failures.model] if route.contract.failures else []
            given += [*_STREAM_MODELS] if route.contract.streams else []
            given += [QueryFailure] if route.answers_queries else []
        _, bodies = msgspec.json.schema_components(_models(taken), ref_template=_REF)
        _, answers = msgspec.json.schema_components(_models(given), ref_template=_REF)
        for name, model in _structs(_models(given)).items():
            # An answer has every field, unless it is unset or its model omits fields without a value.
            if not model.__struct_config__.omit_defaults:
                fields = msgspec.structs.fields(model)
                answers[name]["required"] = [each.encode_name for each in fields if each.default is not msgspec.UNSET]
            _without_defaults(answers[name])
        self.components: dict[str, Json] = dict(sorted((bodies | answers).items()))
        # Responses that many routes share.
        self.responses: dict[str, Json] = {}
        self.headers: set[str] = set()

    @staticmethod
    def ref(model: Model) -> Json:
        return {"$ref": _REF.format(name=model.__name__)}


def _models(found: Iterable[object]) -> list[Model]:
    """The distinct models among `found`."""
    return list(dict.fromkeys(each for each in found if isinstance(each, type) and issubclass(each, msgspec.Struct)))


def _structs(models: Iterable[Model]) -> dict[str, Model]:
    """These models and all models nested in them, by name."""
    found: dict[str, Model] = {}

    def look_at(kind: msgspec.inspect.Type | None) -> None:
        if isinstance(kind, msgspec.inspect.Metadata):
            look_at(kind.type)
        elif isinstance(kind, msgspec.inspect.ListType):
            look_at(kind.item_type)
        elif isinstance(kind, msgspec.inspect.UnionType):
            for each in kind.types:
                look_at(each)
        elif isinstance(kind, msgspec.inspect.StructType) and kind.cls.__name__ not in found:
            found[kind.cls.__name__] = kind.cls
            for field in kind.fields:
                look_at(field.type)

    for model in models:
        look_at(msgspec.inspect.type_info(model))
    return found


def _without_defaults(schema: Json) -> None:
    """Removes defaults, which are meaningful in requests but not in answers."""
    for field in schema.get("properties", {}).values():
        field.pop("default", None)


def _operation(route: Route, shapes: _Shapes) -> Json:
    operation: Json = {
        "operationId": _operation_id(route),
        "summary": route.purpose,
        "description": _who_may_call(route),
        "tags": [_tag(route)],
        "security": _security(route),
        "responses": _responses(route, shapes),
    }
    if parameters := _parameters(route.contract):
        operation["parameters"] = parameters
    if route.contract.body is not None:
        operation["requestBody"] = _request_body(route.contract, shapes)
    return operation


def _operation_id(route: Route) -> str:
    """The words of the method and the path. It is unique: a path that ends with a slash is not the one without."""
    words = re.sub(r"[^a-z0-9]+", "_", route.path.lower()).strip("_")
    slash = "slash" if words and route.path.endswith("/") else ""
    return "_".join(filter(None, (route.method.lower(), words, slash)))


def _who_may_call(route: Route) -> str:
    if route.scope is None:
        return "Requires no key."
    if isinstance(route.scope, Scope):
        return f"Requires the scope `{route.scope}`."
    return f"Requires {route.scope.value}."


def _tag(route: Route) -> str:
    segments = [segment for segment in route.path.split("/") if segment not in ("", "v1")]
    return "service" if route.scope is None or not segments else segments[0]


def _security(route: Route) -> list[Json]:
    if route.scope is None:
        return []
    needed: Json = {"credential": [str(route.scope)] if isinstance(route.scope, Scope) else []}
    return [needed, {}] if route.key_in_body else [needed]


def _parameters(contract: Contract) -> list[Json]:
    found: list[Json] = []
    if (path := contract.path) is not None:
        described = {"description": path.description, "schema": dict(path.schema), "example": path.example}
        found.append({"name": path.name, "in": "path", "required": True, **described})
    found += _options(contract.options) if contract.options is not None else []
    for header in contract.headers:
        described = {"description": header.description, "schema": dict(header.schema)}
        found.append({"name": header.name, "in": "header", "required": False, **described})
    return found


def _options(model: Model) -> list[Json]:
    schema = msgspec.json.schema(model)["$defs"][model.__name__]
    return [_option(name, field, name in schema.get("required", ())) for name, field in schema["properties"].items()]


def _option(name: str, field: Json, required: bool) -> Json:
    description = field.pop("description", "")
    if "anyOf" in field:
        # None means that the option is missing. It can't be sent as text.
        (only,) = [kind for kind in field.pop("anyOf") if kind != {"type": "null"}]
        field = only
    field.pop("default", None) if field.get("default", 0) is None else None
    return {"name": name, "in": "query", "required": required, "description": description, "schema": field}


def _request_body(contract: Contract, shapes: _Shapes) -> Json:
    body = contract.body
    if isinstance(body, Media):
        media: Json = {"schema": {"type": "object" if _is_json(body) else "string", "description": body.description}}
        content_type, required = body.content_type, True
    else:
        assert body is not None
        media = {"schema": shapes.ref(body)}
        # An empty body counts as {}.
        content_type, required = JSON_TYPE, bool(shapes.components[body.__name__].get("required"))
    if contract.examples:
        media["examples"] = {name: {"summary": name, "value": value} for name, value in contract.examples.items()}
    return {"required": required, "content": {content_type: media}}


def _responses(route: Route, shapes: _Shapes) -> Json:
    codes: dict[int, list[str]] = {}
    for code in _codes(route):
        codes.setdefault(_status_of_code(route, code), []).append(code)
    statuses = sorted({*codes, *route.contract.answers})
    return {str(status): _shared(route, shapes, status, codes.get(status, [])) for status in statuses}


def _shared(route: Route, shapes: _Shapes, status: int, codes: list[str]) -> Json:
    """The response, as a reference if it has only errors that all routes share."""
    response = _response(route, shapes, status, codes)
    engine_speaks = status in _engine_statuses(route)
    if status in route.contract.answers or engine_speaks or not _COMMON.issuperset(codes):
        return response
    kind = _failure_model(route).__name__ if route.scope is not None else "OpenFailure"
    name = f"{kind}_{'_or_'.join(codes)}"
    assert shapes.responses.setdefault(name, response) == response
    return {"$ref": f"#/components/responses/{name}"}


def _codes(route: Route) -> tuple[str, ...]:
    contract = route.contract
    checked = contract.options is not None and contract.options.__struct_config__.forbid_unknown_fields
    return (
        *_ANY_ROUTE,
        *(_KNOWN_CALLERS if route.scope is not None else ()),
        *(_WITH_BODY if contract.body is not None else ()),
        *(("invalid_option",) if checked else ()),
        *(code for code in contract.errors if route.scope is None or code not in _KNOWN_CALLERS),
    )


def _response(route: Route, shapes: _Shapes, status: int, codes: list[str]) -> Json:
    contract = route.contract
    content: dict[str, Json] = {}
    descriptions: list[str] = []
    schemas: list[Json] = []
    answered = contract.answers.get(status)
    if isinstance(answered, Media):
        content[answered.content_type] = {"schema": {"type": "object" if _is_json(answered) else "string"}}
        descriptions.append(answered.description)
    elif answered is not None:
        schemas.append(shapes.ref(answered))
        descriptions.append((answered.__doc__ or "").partition("\n")[0])
        if contract.other_answer is not None and status == 200:
            schemas.append(shapes.ref(contract.other_answer))
            descriptions.append((contract.other_answer.__doc__ or "").partition("\n")[0])
    elif status in contract.answers:
        descriptions.append("Not modified. Your copy is current." if status == 304 else "Done. There is no body.")
    if codes:
        schemas.append(_failure(route, shapes, status, codes))
        descriptions += [f"`{code}`: {CODES[code].when}" for code in codes]
    if status in _engine_statuses(route):
        descriptions.append(_ENGINES_CODES[status] if contract.failures is None else _ENGINES_SQLSTATES)
    if schemas and JSON_TYPE not in content:
        content[JSON_TYPE] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    if answered is not None and status == 200:
        content |= {each.content_type: {"schema": _streamed(each)} for each in contract.streams}
        content |= {each.content_type: {"schema": {"type": "string"}} for each in contract.pages}
    response: Json = {"description": "\n\n".join(descriptions), "headers": _headers(route, status, shapes)}
    return response | ({"content": content} if content else {})


_ENGINES_CODES = {
    200: "Or PostgreSQL rejected the statement: `success` is false, and `code` is PostgreSQL's condition name.",
    400: "Or PostgreSQL cannot parse the statement: `code` is PostgreSQL's condition name.",
}
_ENGINES_SQLSTATES = "Or PostgreSQL rejected the statement: `code` is its SQLSTATE."


def _engine_statuses(route: Route) -> frozenset[int]:
    """The statuses with which PostgreSQL's own errors are reported."""
    if not route.contract.runs_sql:
        return frozenset()
    return _ENGINE_STATUSES if route.contract.failures is None else frozenset({400})


def _status_of_code(route: Route, code: str) -> int:
    failures = route.contract.failures
    return status_of_code(code) if failures is None else failures.status_of_code(code)


def _is_json(media: Media) -> bool:
    return media.content_type == JSON_TYPE


def _streamed(media: Media) -> Json:
    if media.content_type != "text/event-stream":
        return {"type": "string", "description": media.description}
    return {"description": media.description, "anyOf": [_event(name, model) for name, model in _EVENTS.items()]}


def _event(name: str, model: Model | None) -> Json:
    """One event of a stream. OpenAPI 3.1 can't describe a sequence of events."""
    content = {"$ref": _REF.format(name=model.__name__)} if model else {"type": ["object", "array"]}
    data = {"type": "string", "contentMediaType": JSON_TYPE, "contentSchema": content}
    return {"type": "object", "required": ["event", "data"], "properties": {"event": {"const": name}, "data": data}}


def _failure(route: Route, shapes: _Shapes, status: int, codes: list[str]) -> Json:
    shape = shapes.ref(_failure_model(route))
    if status in _engine_statuses(route):
        return shape
    named = {"properties": {"error": {"properties": {"code": {"enum": sorted(codes)}}}}}
    return {"allOf": [shape, named]}


def _failure_model(route: Route) -> Model:
    if route.contract.failures is not None:
        return route.contract.failures.model
    return QueryFailure if route.answers_queries else Failure


def _headers(route: Route, status: int, shapes: _Shapes) -> Json:
    names = ["X-Request-Id", "Server-Timing"]
    if route.scope is not None and status != 401:
        names += ["RateLimit-Policy", "RateLimit"]
    names += {401: ["WWW-Authenticate"], 429: ["Retry-After"], 503: ["Retry-After"]}.get(status, [])
    if status in (200, 304) and any(header.name == "If-None-Match" for header in route.contract.headers):
        names.append("ETag")
    if status == 200 and any(header.name == "Idempotency-Key" for header in route.contract.headers):
        names.append("Idempotency-Replayed")
    shapes.headers.update(names)
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _header(description: str, pattern: str) -> Json:
    schema = {"type": "string"} | ({"pattern": pattern} if pattern else {})
    return {"description": description, "schema": schema}
