"""Encodes rows as JSON or CSV: the hot loop of large results.

    rows = RowRenderer(names, encoders).render(result)

A row becomes a JSON object, a JSON array or a CSV line. The caller chooses an encoder for each column; see `shapes.py`.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec
from psycopg import pq
from psycopg.pq.abc import PGresult

from plainsql_server.core.long_work import ENCODING, run
from plainsql_server.engine.encoding.values import Encoder, kind_of
from plainsql_server.extension_modules import COMPILED

if TYPE_CHECKING:
    from plainsql_server.engine.encoding.row_writer import RowWriter


def distinct_names(names: Sequence[str]) -> list[str]:
    """Makes names unique: later duplicates become `name_1`, `name_2` and so on, skipping names already in use."""
    taken = set(names)
    seen: set[str] = set()
    # The last number tried for each name: a result may have more than a thousand columns of the same name.
    counts: dict[str, int] = {}
    distinct = []
    for name in names:
        chosen, count = name, counts.get(name, 0)
        while chosen in seen or (count and chosen in taken):
            count += 1
            chosen = f"{name}_{count}"
        counts[name] = count
        seen.add(chosen)
        distinct.append(chosen)
    return distinct


def _compiled_writer() -> "type[RowWriter] | None":
    # The writer reads libpq's memory, which only psycopg's C implementation exposes.
    if not COMPILED or pq.__impl__ == "python":
        return None
    writer: type[RowWriter] = import_module("plainsql_server.engine.encoding.row_writer").RowWriter
    return writer


_writer_class = _compiled_writer()


class RowRenderer:
    """Encodes the rows of one result's chunks: with the compiled writer, or with a `%` template, which joins in C."""

    def __init__(
        self,
        names: Sequence[str] | None,
        encoders: Sequence[Encoder | None],
        before: bytes = b"",
        after: bytes = b"",
    ) -> None:
        """With `names`, rows are objects; with None, arrays. `before` and `after` are written around each row as is."""
        between = _around_array(len(encoders)) if names is None else _around_object(names)
        between[0] = before + between[0]
        between[-1] += after
        self._set_up(between, encoders, [kind_of(encoder) for encoder in encoders], b"null", as_csv=False)

    @classmethod
    def of_fields(cls, encoders: Sequence[Encoder], kinds: Sequence[int], after: bytes, null: bytes) -> "RowRenderer":
        """A renderer for CSV lines: values separated by commas."""
        renderer = cls(None, ())
        between = [b"", *[b","] * (len(encoders) - 1), after] if encoders else [after]
        renderer._set_up(between, encoders, kinds, null, as_csv=True)
        return renderer

    def _set_up(
        self,
        between: list[bytes],
        encoders: Sequence[Encoder | None],
        kinds: Sequence[int],
        null: bytes,
        *,
        as_csv: bool,
    ) -> None:
        self._encoders = list(enumerate(encoders))
        self._null_field = null
        self._template = b"%b".join([text.replace(b"%", b"%%") for text in between])
        # The compiled writer, if there is one.
        self.writer: RowWriter | None = None
        self._write: Callable[[PGresult, int, int], list[bytes]] | None = None
        self._write_long: Callable[[PGresult, int, int], list[bytes]] = self.render_uncompiled
        if _writer_class is not None:
            self.writer = _writer_class(between, list(encoders), list(kinds), null, as_csv)
            self._write, self._write_long = self.writer.write, self.writer.write_long

    def render(self, result: PGresult) -> list[bytes]:
        """Encodes all rows of a result."""
        return self.render_some(result, 0, result.ntuples)

    def render_some(self, result: PGresult, first: int, end: int) -> list[bytes]:
        """Encodes the rows of a result from `first` up to, but not including, `end`."""
        return self.render_uncompiled(result, first, end) if self._write is None else self._write(result, first, end)

    async def render_long(self, organization_id: str, result: PGresult, first: int, end: int) -> list[bytes]:
        """Like `render_some`, on a thread, for rows so long that other requests would wait."""
        return await run(ENCODING, organization_id, self._write_long, result, first, end)

    def render_uncompiled(self, result: PGresult, first: int, end: int) -> list[bytes]:
        """Like `render_some`, in Python: without extension modules, and as the reference for the compiled one."""
        value_at = result.get_value
        template = self._template
        encoders = self._encoders
        null = self._null_field
        return [
            template
            % tuple(
                [
                    null if (value := value_at(row, column)) is None else encode(value) if encode else value
                    for column, encode in encoders
                ]
            )
            for row in range(first, min(end, result.ntuples))
        ]


def _around_object(names: Sequence[str]) -> list[bytes]:
    keys = [msgspec.json.encode(name) + b":" for name in names]
    return [*[(b"," if index else b"{") + key for index, key in enumerate(keys)], b"}" if keys else b"{}"]


def _around_array(count: int) -> list[bytes]:
    return [b"[", *[b","] * (count - 1), b"]"] if count else [b"[]"]
