"""What a route takes and gives, declared beside it: the source of `/openapi.json`.

Owns the words of the declaration. Refuses to check requests by it: handlers decode into the same models, and tests
compare every answer that they see with the document that `openapi.py` makes of this.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

JSON_TYPE = "application/json"

Model = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Media:
    """An answer or a body that is no JSON model of ours."""

    content_type: str
    description: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the path, or a header that the route heeds."""

    name: str
    description: str
    schema: Mapping[str, Any]
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a route takes and gives, beside what every route does (see `openapi.py`)."""

    # By status; None is an answer without a body.
    answers: Mapping[int, Model | Media | None]
    # The codes of its own errors, all of `error_codes.py`.
    errors: tuple[str, ...]
    body: Model | Media | None = None
    # Bodies to try the route with.
    examples: Mapping[str, Any] | None = None
    options: Model | None = None
    path: Parameter | None = None
    headers: tuple[Parameter, ...] = ()
    # Customers' SQL runs here: the engine's own codes may come, with status 200 or 400.
    runs_sql: bool = False
    # The answer may also be a stream, in one of these forms.
    streams: tuple[Media, ...] = ()
