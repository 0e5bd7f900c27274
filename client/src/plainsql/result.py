"""The result of a statement: rows by position and by name, as dictionaries, as your own objects, or as data frames.

A result is always complete; `streaming.py` has results that are read as they arrive. `values.py` converts the values.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from plainsql.errors import Notice, ResultError, notices_in
from plainsql.values import read_rows

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

T = TypeVar("T")


class Row(tuple[Any, ...]):
    """One row: a tuple whose values are also available by column name, as `row["id"]` or `row.id`.

    For the names `count` and `index`, which tuples already have, use `row["count"]`.
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
        """Returns the row as a dictionary by column name."""
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
    """Unique column names: a second `id` becomes `id_1`, as in the service's JSON objects."""
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
    """Rows of Python values from a response's arrays. Without types, the values stay as they are."""
    read_rows(raw, types)
    return list(map(row_class(unique_names(columns)), raw))


class Result:
    """The whole result of one statement. Iterate over it to get the rows.

    Attributes: `rows`, `columns`, `types`, `affected_rows`, `command`, `truncated`, `request_id`, `exec_us` (time in
    PostgreSQL) and `total_us` (time in the service). `notices` are PostgreSQL's notices and warnings. `read_only` is
    True if the statement ran read-only, so it cannot have written. `replayed` is True if a request with the same
    idempotency key ran earlier; this is its result.
    """

    __slots__ = (
        "affected_rows", "columns", "command", "exec_us", "notices", "read_only", "replayed", "request_id", "rows",
        "total_us", "truncated", "types",
    )  # fmt: skip

    def __init__(
        self,
        answer: Mapping[str, Any],
        *,
        request_id: str | None = None,
        replayed: bool = False,
        read_only: bool = False,
        as_sent: bool = False,
    ) -> None:
        """Reads a response whose rows are arrays. With `as_sent`, values stay as decoded from JSON."""
        self.columns: tuple[str, ...] = tuple(answer["columns"])
        self.types: tuple[str, ...] = tuple(answer["types"])
        self.rows: list[Row] = make_rows(answer["rows"], self.columns, () if as_sent else self.types)
        self.affected_rows: int = answer["affected_rows"]
        self.command: str = answer["command"]
        self.truncated: bool = answer["truncated"]
        self.notices: tuple[Notice, ...] = notices_in(answer)
        self.exec_us: int = answer["timings"]["exec_us"]
        self.total_us: int = answer["timings"].get("total_us", self.exec_us)
        self.request_id: str = request_id or answer.get("request_id", "")
        self.replayed = replayed
        self.read_only = read_only

    def __repr__(self) -> str:
        rows = f"{len(self.rows)} {'row' if len(self.rows) == 1 else 'rows'}"
        return f"<Result of {self.command}: {rows} of {', '.join(self.columns) or '-'}, {self.affected_rows} affected>"

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def first(self) -> Row | None:
        """Returns the first row, or None."""
        return self.rows[0] if self.rows else None

    def one(self) -> Row:
        """Returns the only row. Raises ResultError if there is no row or more than one."""
        if len(self.rows) != 1:
            raise ResultError(f"Expected one row, got {len(self.rows)}.")
        return self.rows[0]

    def value(self) -> Any:
        """Returns the only value of the only row. Raises ResultError if there is none or more than one."""
        row = self.one()
        if len(row) != 1:
            raise ResultError(f"Expected one column, got {len(row)}.")
        return row[0]

    def dicts(self) -> list[dict[str, Any]]:
        """Returns the rows as dictionaries."""
        names = unique_names(self.columns)
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def objects(self, kind: type[T]) -> list[T]:
        """Returns the rows as objects of a class that takes the columns as keyword arguments, such as a dataclass."""
        return [kind(**fields) for fields in self.dicts()]

    def to_arrow(self) -> "pyarrow.Table":
        """Returns the result as an Arrow table. Requires pyarrow."""
        from plainsql.frames import arrow_table  # noqa: PLC0415  # an optional dependency

        return arrow_table(self.columns, self.types, self.rows)

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the result as a pandas data frame. Requires pandas."""
        from plainsql.frames import pandas_frame  # noqa: PLC0415  # an optional dependency

        return pandas_frame(self.columns, self.types, self.rows)

    def to_polars(self) -> "polars.DataFrame":
        """Returns the result as a polars data frame. Requires polars."""
        from plainsql.frames import polars_frame  # noqa: PLC0415  # an optional dependency

        return polars_frame(self.columns, self.types, self.rows)


class TransactionResult:
    """The results of a transaction's statements, in order. Iterate over it to get each `Result`.

    Attributes: `results`, `affected_rows` (the total), `attempts` (how many the service needed), `transaction_id`,
    `request_id`, `exec_us` (time in PostgreSQL), `total_us` (time in the service) and `replayed`. `notices` are those
    that came at the commit; each result has its own.

    If the statements ran one by one with `query`, this is the commit of them all. `results` is then empty: `query` has
    returned them, each with the request id and the times of its own request.
    """

    __slots__ = (
        "affected_rows", "attempts", "exec_us", "notices", "replayed", "request_id", "results", "total_us",
        "transaction_id",
    )  # fmt: skip

    def __init__(self, answer: Mapping[str, Any], *, replayed: bool = False, as_sent: bool = False) -> None:
        request_id = answer["request_id"]
        self.results = [
            Result(each, request_id=request_id, replayed=replayed, as_sent=as_sent) for each in answer["results"]
        ]
        self.affected_rows: int = answer["affected_rows"]
        self.attempts: int = answer["transaction"]["attempts"]
        self.notices: tuple[Notice, ...] = notices_in(answer)
        self.transaction_id: str = answer["transaction"]["id"]
        self.exec_us: int = answer["timings"]["exec_us"]
        self.total_us: int = answer["timings"]["total_us"]
        self.request_id: str = request_id
        self.replayed = replayed

    def __getitem__(self, index: int) -> Result:
        return self.results[index]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)
