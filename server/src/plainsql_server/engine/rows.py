"""Rows to JSON: the hot loop of large results.

Owns how the values of a row are put together, as an object or as an array. Refuses to know types.
"""

from collections.abc import Sequence

import msgspec
from psycopg.pq.abc import PGresult

from plainsql_server.engine.values import Encoder


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names with later twins renamed `name_1`, `name_2` …, past names that are taken already."""
    taken = set(names)
    seen: set[str] = set()
    distinct = []
    for name in names:
        chosen, count = name, 0
        while chosen in seen or (count and chosen in taken):
            count += 1
            chosen = f"{name}_{count}"
        seen.add(chosen)
        distinct.append(chosen)
    return distinct


class RowRenderer:
    """Renders the rows of one result's chunks. The template does the joining in C."""

    def __init__(
        self,
        names: Sequence[str] | None,
        encoders: Sequence[Encoder | None],
        before: bytes = b"",
        after: bytes = b"",
        null: bytes = b"null",
    ) -> None:
        """Names make rows objects; None makes them arrays. What goes before and after each row has no % in it."""
        self._encoders = list(enumerate(encoders))
        self._null = null
        template = _array_template(len(encoders)) if names is None else _object_template(names)
        self._template = before + template + after

    @classmethod
    def of_values(cls, encoders: Sequence[Encoder | None], after: bytes, null: bytes) -> "RowRenderer":
        """Rows that are nothing but their values, with commas between."""
        renderer = cls(None, encoders, null=null)
        renderer._template = renderer._template[1:-1] + after
        return renderer

    def render(self, result: PGresult) -> list[bytes]:
        value_at = result.get_value
        template = self._template
        encoders = self._encoders
        null = self._null
        return [
            template
            % tuple(
                [
                    null if (value := value_at(row, column)) is None else encode(value) if encode else value
                    for column, encode in encoders
                ]
            )
            for row in range(result.ntuples)
        ]


def _object_template(names: Sequence[str]) -> bytes:
    keys = [msgspec.json.encode(name).replace(b"%", b"%%") for name in names]
    return b"{" + b",".join(key + b":%b" for key in keys) + b"}"


def _array_template(count: int) -> bytes:
    return b"[" + b",".join([b"%b"] * count) + b"]"
