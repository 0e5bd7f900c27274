"""Derives a result's shape, and the renderer for its rows, from its column descriptions.

Chooses the column names in the response and an encoder for each column. Does not look at rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta
from psycopg.pq.abc import PGresult

from plainsql_server.core.result import Shape
from plainsql_server.engine.encoding.csv_values import NULL, csv_encoder
from plainsql_server.engine.encoding.rows import RowRenderer, distinct_names
from plainsql_server.engine.encoding.text_values import json_encoder, text_encoder
from plainsql_server.engine.encoding.types import EngineType
from plainsql_server.engine.encoding.values import Encoder, encoder_for, kind_of, untranslatable


class Encoding(NamedTuple):
    """The encoding that the client asked for."""

    rows_as_arrays: bool = False
    big_numbers_as_strings: bool = False
    # Written before and after each row, in formats without separators between rows.
    before: bytes = b""
    after: bytes = b""
    as_csv: bool = False
    # How values are written: as our own routes do, as PostgreSQL's text, or as the Neon driver's protocol has them.
    style: Literal["own", "text", "neon"] = "own"

    @property
    def describes_fields(self) -> bool:
        """Whether the shape has all that PostgreSQL says of each column, instead of names and types."""
        return self.style != "own"


DEFAULT_ENCODING = Encoding()

# Of each column: the table and the number of the column that it comes from, or zeros; its size and type modifier.
Origins = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Rendering:
    """A result's shape and the renderer for its rows."""

    shape: Shape
    rows: RowRenderer
    origins: Origins = ()


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


def origins_of(result: PGresult, encoding: Encoding, hidden: int = 0) -> Origins:
    """Where the columns come from, if the encoding describes that; else empty."""
    if not encoding.describes_fields:
        return ()
    fields = range(result.nfields - hidden)
    return tuple([(result.ftable(at), result.ftablecol(at), result.fsize(at), result.fmod(at)) for at in fields])


def rendering_of(
    description: Description, types: Sequence[EngineType], encoding: Encoding, origins: Origins = ()
) -> Rendering:
    """Builds the rendering of results with this description, in an encoding."""
    names = [name for name, _ in description]
    if not encoding.rows_as_arrays:
        names = distinct_names(names)
    encoders = [_encoder(type_, encoding) for type_ in types]
    if encoding.as_csv:
        renderer = RowRenderer.of_fields(
            [csv_encoder(each) for each in encoders], [kind_of(each) for each in encoders], encoding.after, NULL
        )
    else:
        renderer = RowRenderer(None if encoding.rows_as_arrays else names, encoders, encoding.before, encoding.after)
    shape = _shape(names, [type_.name for type_ in types])
    if encoding.describes_fields:
        shape = replace(shape, json=_fields(description, origins))
    return Rendering(shape, renderer, origins)


def _encoder(type_: EngineType, encoding: Encoding) -> Encoder | None:
    if encoding.style == "text":
        return text_encoder(type_)
    if encoding.style == "neon":
        return json_encoder(type_)
    return encoder_for(type_, big_numbers_as_strings=encoding.big_numbers_as_strings)


def _shape(names: Sequence[str], types: Sequence[str]) -> Shape:
    json = b'"columns":' + msgspec.json.encode(names) + b',"types":' + msgspec.json.encode(types)
    return Shape(tuple(names), tuple(types), json)


class FieldDescription(
    msgspec.Struct,
    rename={
        "type_id": "dataTypeID", "table_id": "tableID", "column_id": "columnID", "type_size": "dataTypeSize",
        "type_modifier": "dataTypeModifier",
    },
):  # fmt: skip
    """A column of a result, as PostgreSQL describes it."""

    name: str
    type_id: Annotated[int, Meta(description="OID of the type.")]
    table_id: Annotated[int, Meta(description="OID of the table that the column is from, or 0.")]
    column_id: Annotated[int, Meta(description="Number of the column in that table, or 0.")]
    type_size: Annotated[int, Meta(description="Size of the type in bytes. Negative if it varies.")]
    type_modifier: Annotated[int, Meta(description="Modifier of the type, or -1.")]
    format: Annotated[str, Meta(description="Always text.")]


def _fields(description: Description, origins: Origins) -> bytes:
    columns = zip(description, origins, strict=True)
    fields = [FieldDescription(name, oid, *origin, "text") for (name, oid), origin in columns]
    return b'"fields":' + msgspec.json.encode(fields)
