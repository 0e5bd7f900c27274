"""Inserts many rows: `insert_rows` and `insert_frame` of both clients.

All rows are inserted, or none. If they fit one request, they are one transaction. More rows are stored in batches in a
staging table (`Stage`), and from there in the target table in one transaction. `plainsql import` does the same.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple

from plainsql.errors import Error
from plainsql.folding import BATCH_PARAMS, InsertTemplate
from plainsql.parameters import encode_params
from plainsql.transport.protocol import Core, Options
from plainsql.transport.wire import Steps
from plainsql.values import EncodedParams, encode_json

OnConflict = Literal["nothing", "update"]

# The smallest limit on a request's size is 4 MiB.
_BATCH_BYTES = 1 << 19
_REQUEST_BYTES = 6 * _BATCH_BYTES
# What a parameter needs in the text of its statement: `$12345, `.
_PLACE_BYTES = 8
# The columns of a unique index ($2), unless it has expressions or a condition. NULL means the primary key.
KEY_COLUMNS = """
select a.attname::text as name
from pg_index i join pg_class c on c.oid = i.indexrelid
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
where i.indrelid = $1::regclass and case when $2::text is null then i.indisprimary else c.relname = $2::text end
and i.indexprs is null and i.indpred is null order by a.attnum
"""


class Rows(NamedTuple):
    """Rows for a table: dictionaries, or sequences in the order of `columns`."""

    table: str
    rows: Iterable[Any]
    columns: Sequence[str] | None = None

    def named(self) -> tuple[list[str], Iterator[Sequence[Any]]]:
        """The columns, and each row's values in their order. Without rows, there are no columns."""
        remaining = iter(self.rows)
        first = next(remaining, None)
        if first is None:
            return [], iter(())
        if self.columns is None and not isinstance(first, Mapping):
            raise ValueError("Pass columns=… with the names of the columns, or rows that are dictionaries.")
        names = list(first if self.columns is None else self.columns)
        if not names:
            raise ValueError("The rows have no columns.")
        return names, (_row(at, each, names) for at, each in enumerate(chain([first], remaining), 1))


class RowBatch(NamedTuple):
    """Rows as JSON, how many they are, and about how many bytes they and their statement need."""

    params: EncodedParams
    rows: int
    size_bytes: int


class InsertTarget(NamedTuple):
    """The table, quoted; the columns to fill; and what to append to an INSERT into it."""

    table: str
    columns: Sequence[str]
    conflict: str = ""

    @property
    def names(self) -> str:
        return ", ".join(map(quoted, self.columns))


class Stage:
    """A staging table, `plainsql_import_…`: its SQL. `ROW` is a column for the number of each row in the input.

    Rows whose number is NULL are moved in the order in which they were stored.
    """

    ROW = "plainsql_row"
    # The move may take long, and is limited by the tier in any case.
    MOVE_S = 300.0

    def __init__(self, target: InsertTarget) -> None:
        self.name = f"plainsql_import_{os.urandom(6).hex()}"
        self.target = target

    def create(self) -> str:
        """Creates it, with the types of the target's columns."""
        columns = f"null::int8 as {self.ROW}, {self.target.names}"
        return f"create unlogged table {self.name} as select {columns} from {self.target.table} with no data"

    def copy(self, condition: str = "") -> str:
        """Inserts its rows into the target."""
        target = self.target
        rows = f"select {target.names} from {self.name} {condition} order by {self.ROW}, ctid"
        return f"insert into {target.table} ({target.names}) {rows}{target.conflict}"

    def drop(self) -> str:
        return f"drop table if exists {self.name}"


def quoted(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """A table, with its schema if there is a dot."""
    return ".".join(quoted(part) for part in name.split("."))


def insert_rows(core: Core, rows: Rows, on_conflict: OnConflict | None, options: Options) -> Steps[int]:
    """Inserts the rows and returns how many were inserted or updated."""
    names, values = rows.named()
    if not names:
        return 0
    target = InsertTarget(quoted_table(rows.table), names)
    if on_conflict is not None:
        clause = conflict_clause(on_conflict, names, (yield from key_columns(core, target.table, options)))
        target = target._replace(conflict=f" {clause}")
    batches = _batches(names, values)
    first, is_all = _request_of(batches)
    if not is_all:
        return (yield from _through_stage(core, target, chain(first, batches), options))
    statements = [_statement(target.table, target, batch) for batch in first]
    done = yield from core.transaction(statements, options, None)
    return sum(result.affected_rows for result in done.results)


def key_columns(core: Core, table: str, options: Options) -> Steps[list[str]]:
    """The columns of the table's primary key."""
    return [row.name for row in (yield from core.query(KEY_COLUMNS, [table, None], options))]


def conflict_clause(action: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """The ON CONFLICT clause: what happens to a row whose primary key exists already."""
    if action == "nothing":
        return "on conflict do nothing"
    if action != "update":
        raise ValueError(f"on_conflict must be 'nothing' or 'update', not {action!r}.")
    missing = [name for name in key if name not in columns]
    if not key or missing:
        reason = f"the rows lack {missing[0]!r}" if missing else "the table has none"
        raise ValueError(f"An update on conflict needs the primary key, but {reason}.")
    changed = [name for name in columns if name not in key]
    if not changed:
        return "on conflict do nothing"
    changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in changed)
    return f"on conflict ({', '.join(map(quoted, key))}) do update set {changes}"


def _request_of(batches: Iterator[RowBatch]) -> tuple[list[RowBatch], bool]:
    """The first batches, and whether there are no others. If there are, they don't fit one request."""
    first: list[RowBatch] = []
    size_bytes = 0
    for batch in batches:
        first.append(batch)
        size_bytes += batch.size_bytes
        if size_bytes > _REQUEST_BYTES:
            return first, False
    return first, True


def _through_stage(core: Core, target: InsertTarget, batches: Iterable[RowBatch], options: Options) -> Steps[int]:
    stage = Stage(target)
    in_stage = target._replace(conflict="")
    yield from core.query(stage.create(), (), options)
    try:
        for batch in batches:
            yield from core.transaction([_statement(stage.name, in_stage, batch)], options, None)
        statements = [{"sql": stage.copy()}, {"sql": stage.drop()}]
        wait_s = max(Stage.MOVE_S, options.timeout_s or 0)
        done = yield from core.transaction(statements, options._replace(timeout_s=wait_s), None)
        return int(done.results[0].affected_rows)
    except Exception:
        # Its own error must not replace this one, which says whether the rows were inserted.
        with suppress(Error):
            yield from core.query(stage.drop(), (), options)
        raise


def _statement(table: str, target: InsertTarget, batch: RowBatch) -> dict[str, Any]:
    return {
        "sql": _insert(table, target.names, target.conflict, len(target.columns), batch.rows),
        "params": batch.params,
    }


# Nearly all batches of a table have the same number of rows.
@lru_cache(maxsize=2)
def _insert(table: str, names: str, conflict: str, width: int, rows: int) -> str:
    row: list[str | int] = ["("]
    for number in range(1, width + 1):
        row += [number, ", " if number < width else ")"]
    return InsertTemplate(f"insert into {table} ({names}) values ", tuple(row), conflict, width).text(rows)


def _batches(columns: Sequence[str], values: Iterator[Sequence[Any]]) -> Iterator[RowBatch]:
    """The rows with their values encoded, in batches."""
    rows_at_most = max(1, BATCH_PARAMS // len(columns))
    texts: list[str] = []
    size_bytes = 0
    for each in values:
        text = encode_json(encode_params(each))[1:-1]
        texts.append(text)
        size_bytes += (len(text) if text.isascii() else len(text.encode())) + 2 + _PLACE_BYTES * len(columns)
        if len(texts) == rows_at_most or size_bytes > _BATCH_BYTES:
            yield _row_batch(texts, size_bytes)
            texts, size_bytes = [], 0
    if texts:
        yield _row_batch(texts, size_bytes)


def _row_batch(texts: list[str], size_bytes: int) -> RowBatch:
    return RowBatch(EncodedParams(", ".join(texts)), len(texts), size_bytes)


def _row(number: int, row: Any, names: list[str]) -> Sequence[Any]:
    if not isinstance(row, Mapping):
        if isinstance(row, str) or len(row) != len(names):
            raise ValueError(f"Row {number} doesn't have {len(names)} values: {row!r}")
        return list(row)
    if row.keys() != set(names):
        wrong = sorted(row.keys() ^ set(names))[0]
        raise ValueError(f"Row {number} {'has' if wrong in row else 'lacks'} the column {wrong!r}, unlike the others.")
    return [row[name] for name in names]


def frame_rows(frame: Any) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """The columns and rows of a pandas or polars data frame, or of an Arrow table. Absent values become None."""
    if hasattr(frame, "iter_rows"):
        return list(frame.columns), frame.iter_rows()
    if hasattr(frame, "column_names") and hasattr(frame, "to_batches"):
        parts = ([column.to_pylist() for column in batch.columns] for batch in frame.to_batches())
        return list(frame.column_names), (row for columns in parts for row in zip(*columns, strict=True))
    if not hasattr(frame, "itertuples"):
        raise TypeError(f"Expected a pandas or polars data frame or an Arrow table, not {type(frame).__name__}.")
    columns = [_series_values(frame.iloc[:, at]) for at in range(len(frame.columns))]
    return [str(name) for name in frame.columns], zip(*columns, strict=True)


def _series_values(series: Any) -> list[Any]:
    """The values of a pandas column. A column of floats that are all integers is sent as integers.

    pandas makes floats of the integers of a column that lacks a value.
    """
    values: list[Any] = series.astype(object).tolist()
    absent = series.isna()
    if absent.any():
        pairs = zip(values, absent.tolist(), strict=True)
        values = [None if is_absent else value for value, is_absent in pairs]
    if getattr(series.dtype, "kind", "") == "f" and all(each is None or _is_integer(each) for each in values):
        return [None if each is None else int(each) for each in values]
    return values


def _is_integer(value: float) -> bool:
    """Whether a float is an exact integer. Zero may have a sign, which an integer hasn't."""
    return value.is_integer() and abs(value) < 2**53 and (value != 0 or math.copysign(1, value) > 0)
