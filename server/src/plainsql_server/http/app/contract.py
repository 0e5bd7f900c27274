"""The contract of a route: its parameters, body, answers and errors. `/openapi.json` is generated from it.

    Contract(body=KeyBody, answers={201: NewKeyAnswer}, errors=("invalid_name", "key_limit"))

The application takes from it where the parameter is in the path, and which body to read. It validates nothing else:
handlers decode into the same models, and tests compare every answer that they see with the generated document.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from plainsql_server.core.errors import ServiceError
from plainsql_server.http.server.responses import Response

JSON_TYPE = "application/json"

Model = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Media:
    """An answer or body that isn't described by a JSON model."""

    content_type: str
    description: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A path parameter, or a header that the route uses."""

    name: str
    description: str
    schema: Mapping[str, Any]
    example: str
    # Whether a path parameter may contain slashes. It must be the end of the path.
    has_slashes: bool = False


class Failures(Protocol):
    """How a route reports failures, if not as all others do."""

    @property
    def model(self) -> Model:
        """The body of a failure."""

    def status_of_code(self, code: str) -> int:
        """The status of one of the codes in `error_codes.py`. That of PostgreSQL's own errors is 400."""

    def response(self, error: ServiceError, request_id: str) -> Response:
        """The response to a failed request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a route accepts and returns, in addition to what all routes share (see `openapi.py`)."""

    # By status. None means an answer without a body.
    answers: Mapping[int, Model | Media | None]
    # Another model that an answer with status 200 may have, if that depends on the request.
    other_answer: Model | None = None
    # The error codes specific to this route. Each is listed in `error_codes.py`.
    errors: tuple[str, ...]
    body: Model | Media | None = None
    # Whether the body is taken whatever its Content-Type says.
    ignores_content_type: bool = False
    # None: the limit of the caller's tier.
    max_body_bytes: int | None = None
    # Example bodies, by title.
    examples: Mapping[str, Any] | None = None
    options: Model | None = None
    path: Parameter | None = None
    headers: tuple[Parameter, ...] = ()
    # Whether the route runs customers' SQL: then PostgreSQL's condition names can occur, with status 200 or 400.
    runs_sql: bool = False
    # The formats in which the answer can be streamed.
    streams: tuple[Media, ...] = ()
    failures: Failures | None = None
    # Other formats of the answer, which the Accept header can ask for.
    pages: tuple[Media, ...] = ()

    @property
    def body_type(self) -> bytes | None:
        """The media type of the body; None if the route takes none."""
        if self.body is None:
            return None
        return (self.body.content_type if isinstance(self.body, Media) else JSON_TYPE).encode()
