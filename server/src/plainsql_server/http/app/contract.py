"""The contract of a route: its parameters, body, answers and errors. `/openapi.json` is generated from it.

    Contract(body=KeyBody, answers={201: NewKeyAnswer}, errors=("invalid_name", "key_limit"))

The application takes from it where the parameter is in the path, and which body to read. It validates nothing else:
handlers decode into the same models, and tests compare every answer that they see with the generated document.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a route accepts and returns, in addition to what all routes share (see `openapi.py`)."""

    # By status. None means an answer without a body.
    answers: Mapping[int, Model | Media | None]
    # The error codes specific to this route. Each is listed in `error_codes.py`.
    errors: tuple[str, ...]
    body: Model | Media | None = None
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
    # Other formats of the answer, which the Accept header can ask for.
    pages: tuple[Media, ...] = ()

    @property
    def body_type(self) -> bytes | None:
        """The media type of the body; None if the route takes none."""
        if self.body is None:
            return None
        return (self.body.content_type if isinstance(self.body, Media) else JSON_TYPE).encode()
