"""What a statement returned: rows by position and by name, as dictionaries, as objects of yours, as data frames.

Owns the shape of results. Values have been read by `values.py`. Refuses to fetch: a result is whole, or is a stream.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from plainsql.errors import ResultError
from plainsql.values import read_rows

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

T = TypeVar("T")


class Row(tuple[Any, ...]):
    """One row: a tuple whose values also go by their columns' names, `row["id"]` or `row.id`.

    A name that tuples have already, `count` or `index`, goes by `row["count"]` alone.
    """

    __slots__ = ()
    _columns: ClassVar[Mapping[str, int]] = {}

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return tuple.__getitem__(self, self._columns[key])
        return tuple.__getitem__(self, key)

    def __getattr__(self, name: str) -> Any:
        try:
            return tuple.__getitem__(self, self._columns[name])
        except KeyError:
            raise AttributeError(f"The row has no column {name!r}; it has {', '.join(self._columns)}.") from None

    def as_dict(self) -> dict[str, Any]:
        """The row by column name."""
        return {name: tuple.__getitem__(self, index) for name, index in self._columns.items()}

    def __repr__(self) -> str:
        return "Row(" + ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items()) + ")"

    def __reduce__(self) -> Any:
        return _restore_row, (tuple(self._columns), tuple(self))


@lru_cache(maxsize=256)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """The class of rows with these columns."""
    return type("Row", (Row,), {"__slots__": (), "_columns": {name: index for index, name in enumerate(names)}})


def _restore_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_class(names)(values)


def unique_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Names by which every value can be found: a second `id` is `id_1`, as the service names it in objects."""
    if len(set(columns)) == len(columns):
        return columns
    taken = set(columns)
    seen: set[str] = set()
    names = []
    for name in columns:
        unique, number = name, 0
        while unique in seen or (number and unique in taken):
            number += 1
            unique = f"{name}_{number}"
        seen.add(unique)
        names.append(unique)
    return tuple(names)


def make_rows(raw: list[list[Any]], columns: tuple[str, ...], types: tuple[str, ...]) -> list[Row]:
    """Rows of Python values from an answer's arrays."""
    read_rows(raw, types)
    return list(map(row_class(unique_names(columns)), raw))


@dataclass(frozen=True, slots=True)
class Result:
    """The whole result of one statement. Iterating gives its rows."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[Row]
    affected_rows: int
    command: str
    truncated: bool
    exec_us: int
    total_us: int
    request_id: str
    replayed: bool = False

    @classmethod
    def of(cls, answer: Mapping[str, Any], *, replayed: bool = False) -> "Result":
        """The result in an answer whose rows are arrays."""
        columns, types = tuple(answer["columns"]), tuple(answer["types"])
        timings = answer["timings"]
        return cls(
            columns=columns,
            types=types,
            rows=make_rows(answer["rows"], columns, types),
            affected_rows=answer["affected_rows"],
            command=answer["command"],
            truncated=answer["truncated"],
            exec_us=timings["exec_us"],
            total_us=timings.get("total_us", timings["exec_us"]),
            request_id=answer.get("request_id", ""),
            replayed=replayed,
        )

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def first(self) -> Row | None:
        """The first row, or None."""
        return self.rows[0] if self.rows else None

    def one(self) -> Row:
        """The only row. Raises ResultError if there is none, or another."""
        if len(self.rows) != 1:
            raise ResultError(f"One row was wanted, and there are {len(self.rows)}.")
        return self.rows[0]

    def value(self) -> Any:
        """The only value of the only row. Raises ResultError if there are more or none."""
        row = self.one()
        if len(row) != 1:
            raise ResultError(f"One value was wanted, and the row has {len(row)}.")
        return row[0]

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dictionaries."""
        names = unique_names(self.columns)
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def objects(self, kind: type[T]) -> list[T]:
        """The rows as objects of a class that takes the columns as keyword arguments, such as a dataclass."""
        return [kind(**fields) for fields in self.dicts()]

    def to_arrow(self) -> "pyarrow.Table":
        """The result as an Arrow table; needs pyarrow."""
        from plainsql.frames import arrow_table  # noqa: PLC0415  # an optional dependency

        return arrow_table(self.columns, self.types, self.rows)

    def to_pandas(self) -> "pandas.DataFrame":
        """The result as a pandas data frame; needs pandas."""
        from plainsql.frames import pandas_frame  # noqa: PLC0415  # an optional dependency

        return pandas_frame(self.columns, self.types, self.rows)

    def to_polars(self) -> "polars.DataFrame":
        """The result as a polars data frame; needs polars."""
        from plainsql.frames import polars_frame  # noqa: PLC0415  # an optional dependency

        return polars_frame(self.columns, self.types, self.rows)


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """What the statements of a transaction returned, in order."""

    results: list[Result]
    affected_rows: int
    attempts: int
    transaction_id: str
    request_id: str
    replayed: bool = False

    def __getitem__(self, index: int) -> Result:
        return self.results[index]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)
