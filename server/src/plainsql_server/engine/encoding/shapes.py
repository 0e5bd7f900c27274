"""Derives a result's shape, and the renderer for its rows, from its column descriptions.

Chooses the column names in the response and an encoder for each column. Does not look at rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from psycopg.pq.abc import PGresult

from plainsql_server.core.result import Shape
from plainsql_server.engine.encoding.csv_values import NULL, csv_encoder
from plainsql_server.engine.encoding.rows import RowRenderer, distinct_names
from plainsql_server.engine.encoding.types import EngineType
from plainsql_server.engine.encoding.values import encoder_for, kind_of, untranslatable


class Encoding(NamedTuple):
    """The encoding that the client asked for."""

    rows_as_arrays: bool = False
    big_numbers_as_strings: bool = False
    # Written before and after each row, in formats without separators between rows.
    before: bytes = b""
    after: bytes = b""
    as_csv: bool = False


DEFAULT_ENCODING = Encoding()


@dataclass(frozen=True, slots=True)
class Rendering:
    """A result's shape and the renderer for its rows."""

    shape: Shape
    rows: RowRenderer


Description = tuple[tuple[str, int], ...]


def describe(result: PGresult, hidden: int = 0) -> Description:
    """The columns of a result, but for the last ones if they are hidden, as (name, type OID).

    Raises StatementError if a name is not UTF-8.
    """
    fields = range(result.nfields - hidden)
    try:
        return tuple([((result.fname(field) or b"").decode(), result.ftype(field)) for field in fields])
    except UnicodeDecodeError as error:
        raise untranslatable() from error


def rendering_of(description: Description, types: Sequence[EngineType], encoding: Encoding) -> Rendering:
    """Builds the rendering of results with this description, in an encoding."""
    names = [name for name, _ in description]
    if not encoding.rows_as_arrays:
        names = distinct_names(names)
    encoders = [encoder_for(type_, big_numbers_as_strings=encoding.big_numbers_as_strings) for type_ in types]
    if encoding.as_csv:
        renderer = RowRenderer.of_fields(
            [csv_encoder(each) for each in encoders], [kind_of(each) for each in encoders], encoding.after, NULL
        )
    else:
        renderer = RowRenderer(None if encoding.rows_as_arrays else names, encoders, encoding.before, encoding.after)
    return Rendering(_shape(names, [type_.name for type_ in types]), renderer)


def _shape(names: Sequence[str], types: Sequence[str]) -> Shape:
    json = b'"columns":' + msgspec.json.encode(names) + b',"types":' + msgspec.json.encode(types)
    return Shape(tuple(names), tuple(types), json)
