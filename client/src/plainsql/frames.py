"""Converts results to pandas, polars and Arrow tables, if those libraries are installed.

A column's type is derived from its PostgreSQL type, never from its values. So a result has the same column types with
or without rows or NULLs. A value that does not fit, such as an infinite date, raises an error.
"""

from collections.abc import Callable, Sequence
from typing import Any

from plainsql.errors import ResultError
from plainsql.values import encode_json

_INSTALL_HINT = "Install it with `pip install 'plainsql[{extra}]'`."

_PANDAS = {
    "bool": "boolean", "int2": "Int16", "int4": "Int32", "int8": "Int64", "oid": "Int64",
    "float4": "float32", "float8": "float64", "timestamptz": "datetime64[us, UTC]", "timestamp": "datetime64[us]",
    "interval": "timedelta64[us]", "text": "str", "varchar": "str", "bpchar": "str",
}  # fmt: skip


def pandas_frame(columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """A pandas data frame. Integers are nullable; numerics are Decimal objects, so they stay exact."""
    pandas = _imported("pandas", "pandas")
    values = _by_column(columns, rows)
    series = [pandas.Series(each, dtype=_PANDAS.get(name, "object")) for each, name in zip(values, types, strict=True)]
    frame = pandas.concat(series, axis=1) if series else pandas.DataFrame()
    frame.columns = list(columns)
    return frame


def arrow_table(
    columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]], *, is_part: bool = False
) -> Any:
    """An Arrow table. Numerics become decimals of the precision they need; json becomes text.

    With `is_part`, the table is part of a longer one, and numerics have 38 digits, 18 of them after the point.
    """
    arrow = _imported("pyarrow", "arrow")
    numeric = arrow.decimal128(38, 18) if is_part else None
    arrays = []
    for column, name, values in zip(columns, types, _by_column(columns, rows), strict=True):
        try:
            arrays.append(arrow.array(_as_text(name)(values), type=_arrow_type(arrow, name, numeric)))
        except arrow.ArrowException as error:
            raise ResultError(f"Column {column!r} can't be converted to Arrow: {error}") from error
    return arrow.Table.from_arrays(arrays, names=list(columns))


def polars_frame(columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """A polars data frame. Numerics become decimals of the precision they need; json becomes text."""
    polars = _imported("polars", "polars")
    values = _by_column(columns, rows)
    series = [
        polars.Series(str(index), _as_text(name)(each), dtype=_polars_type(polars, name))
        for index, (each, name) in enumerate(zip(values, types, strict=True))
    ]
    frame = polars.DataFrame(series)
    if len(set(columns)) == len(columns):
        frame.columns = list(columns)
    return frame


def _arrow_type(arrow: Any, name: str, numeric: Any) -> Any:
    if name.endswith("[]"):
        element = _arrow_type(arrow, name.removesuffix("[]"), numeric)
        return None if element is None else arrow.list_(element)
    known = {
        "bool": arrow.bool_(), "int2": arrow.int16(), "int4": arrow.int32(), "int8": arrow.int64(),
        "oid": arrow.int64(), "float4": arrow.float32(), "float8": arrow.float64(), "date": arrow.date32(),
        "timestamptz": arrow.timestamp("us", tz="UTC"), "timestamp": arrow.timestamp("us"), "time": arrow.time64("us"),
        "interval": arrow.duration("us"), "bytea": arrow.binary(), "numeric": numeric,
    }  # fmt: skip
    return known.get(name, arrow.string())


def _polars_type(polars: Any, name: str) -> Any:
    if name.endswith("[]"):
        element = _polars_type(polars, name.removesuffix("[]"))
        return None if element is None else polars.List(element)
    known = {
        "bool": polars.Boolean, "int2": polars.Int16, "int4": polars.Int32, "int8": polars.Int64, "oid": polars.Int64,
        "float4": polars.Float32, "float8": polars.Float64, "date": polars.Date, "time": polars.Time,
        "timestamptz": polars.Datetime("us", "UTC"), "timestamp": polars.Datetime("us"),
        "interval": polars.Duration("us"), "bytea": polars.Binary, "numeric": None,
    }  # fmt: skip
    return known.get(name, polars.String)


def _as_text(name: str) -> Callable[[list[Any]], list[Any]]:
    """Converts types that Arrow and polars lack to text: json as JSON, uuid as hex digits, timetz as ISO 8601."""
    base = name.removesuffix("[]")
    writers: dict[str, Callable[[Any], str]] = {"json": encode_json, "jsonb": encode_json, "uuid": str, "timetz": str}
    write = writers.get(base)
    if write is None:
        return lambda values: values

    def written(value: Any) -> Any:
        if isinstance(value, list) and name.endswith("[]"):
            return [written(each) for each in value]
        return None if value is None else write(value)

    return lambda values: [written(each) for each in values]


def _by_column(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    if not rows:
        return [[] for _ in columns]
    return [list(values) for values in zip(*rows, strict=True)]


def _imported(module: str, extra: str) -> Any:
    from importlib import import_module  # noqa: PLC0415  # for frames alone

    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{module} is not installed. " + _INSTALL_HINT.format(extra=extra)) from error
