"""Folds an INSERT that runs once for each set of parameters into few statements with many rows each.

    template = insert_template("insert into notes (id, body) values ($1, lower($2))")
    template.text(2)    # … values ($1, lower($2)), ($3, lower($4))

The values stay ordinary parameters, so PostgreSQL infers the same types as for one row. An INSERT is folded only if it
makes no difference: its parameters are all in one VALUES list, without subqueries and without calls of functions that
may read tables, and it returns nothing. Two things can tell: an upsert, which fails folded if it meets a row twice,
and the table's triggers, since those for statements run once, and those that run after a row see all rows.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from plainsql.interactive.texts import calls_only_known
from plainsql.statements import first_word

# The service keeps the generated values of a rehearsed INSERT if its text has up to 128 KiB.
FROZEN_PARAMS = 4_000
# Of 7,000 to 65,000 parameters in a statement, this many were stored fastest, per row.
BATCH_PARAMS = 16_000
# The smallest tier allows 100 statements in a transaction; others may be in it, too.
_STATEMENTS_AT_MOST = 50
# PostgreSQL's limit on parameters, and the service's limit on a statement's text, which has other parts, too.
_PARAMS_AT_MOST = 65_535
# Several statements of this size fit a request: the smallest limit is 4 MiB.
_STATEMENT_BYTES = 1 << 19
_TEXT_AT_MOST = 900_000
# The size in a cast, such as `::FLOAT(53)` or `::TIMESTAMP(6)`, which is not a call.
_TYPE_SIZE = re.compile(r'(::\s*[\w."]+)\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\)')
_TOKEN = re.compile(
    r"""
    (?P<opaque>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/
      | \$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$)
    | \$(?P<param>\d+) | (?P<word>[^\W\d][\w$]*) | (?P<sign>[(),;]) | \d[\w.]* | \s+ | .
    """,
    re.DOTALL | re.VERBOSE,
)


class InsertTemplate(NamedTuple):
    """An INSERT with one row of `params` parameters, whose row can be repeated.

    `row` alternates between text and the number of a parameter.
    """

    before: str
    row: tuple[str | int, ...]
    after: str
    params: int

    @property
    def is_upsert(self) -> bool:
        """Whether it updates the rows that it conflicts with."""
        return "UPDATE" in _words(self.after)

    def text(self, rows: int) -> str:
        """The INSERT of this many rows."""
        return self.before + ", ".join(self._row(at * self.params) for at in range(rows)) + self.after

    def rows_per_statement(self, rows: int, wanted_params: int) -> int:
        """How many rows to insert with one statement, if there are `rows` of them."""
        width = max(1, self.params)
        params = max(wanted_params, -(-rows * width // _STATEMENTS_AT_MOST))
        # In a row's text, a number may have five digits.
        text = len(self._row(10_000)) + 2
        return max(1, min(min(params, _PARAMS_AT_MOST) // width, _TEXT_AT_MOST // text))

    def _row(self, offset: int) -> str:
        return "".join(each if isinstance(each, str) else f"${each + offset}" for each in self.row)


def folded(
    sql: str, template: InsertTemplate, params: Sequence[Sequence[Any]], wanted_params: int
) -> Iterator[tuple[str, list[Any]]]:
    """The few statements that do the same as `sql` with each set of parameters."""
    if len(params) == 1 or any(len(each) != template.params for each in params):
        yield from ((sql, list(each)) for each in params)
        return
    size = template.rows_per_statement(len(params), wanted_params)
    text = template.text(size) if size <= len(params) else ""
    for part in _parts(params, size):
        yield (text if len(part) == size else template.text(len(part))), [value for each in part for value in each]


def _parts(params: Sequence[Sequence[Any]], size: int) -> Iterator[list[Sequence[Any]]]:
    """Parts of up to `size` rows, and not many bytes unless one row has them."""
    part: list[Sequence[Any]] = []
    size_bytes = 0
    for each in params:
        row_bytes = sum(map(size_of, each))
        if part and (len(part) == size or size_bytes + row_bytes > _STATEMENT_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(each)
        size_bytes += row_bytes
    if part:
        yield part


def size_of(value: Any) -> int:
    """About how many bytes a parameter needs in a request: bytes are sent as hexadecimal digits."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if isinstance(value, bytes | bytearray | memoryview):
        return 2 * len(value)
    if isinstance(value, dict):
        return sum(size_of(key) + size_of(each) for key, each in value.items())
    return sum(map(size_of, value)) if isinstance(value, list | tuple) else 32


def insert_template(sql: str) -> InsertTemplate | None:
    """The template of an INSERT that can be folded, or None."""
    if first_word(sql) != "INSERT":
        return None
    found = _values_list(sql)
    if found is None:
        return None
    start, end = found
    inner, after = sql[start:end], sql[end:].rstrip().removesuffix(";")
    words = _words(after)
    if words[:2] not in ([], ["ON", "CONFLICT"]) or "RETURNING" in words or _params(sql[:start]) or _params(after):
        return None
    if not _is_plain(inner) or not _is_plain(_action(after)):
        return None
    return InsertTemplate(sql[:start], _row_parts(inner), after, max(_params(inner), default=0))


def _is_plain(part: str) -> bool:
    """Whether it has no subquery, and calls only functions that are known to read no table."""
    if {"SELECT", "TABLE", "VALUES"} & set(_words(part)):
        return False
    return calls_only_known("select " + _TYPE_SIZE.sub(r"\1", part))


def _action(after: str) -> str:
    """What ON CONFLICT does: the part from DO on."""
    return next(
        (after[match.start() :] for match in _TOKEN.finditer(after) if (match["word"] or "").upper() == "DO"), ""
    )


def _values_list(sql: str) -> tuple[int, int] | None:
    """Where the only row of the VALUES list begins and ends, with its parentheses."""
    depth, is_next, start, end = 0, False, -1, -1
    for match in _TOKEN.finditer(sql):
        sign, word = match["sign"], (match["word"] or "").upper()
        if end >= 0 and sign == "," and depth == 0 and not _words(sql[end : match.start()]):
            # A second row.
            return None
        if depth == 0 and word in ("SELECT", "VALUES") and (start >= 0 or word == "SELECT"):
            return None
        if depth == 0 and word == "VALUES":
            is_next = True
        elif sign == "(":
            if depth == 0 and is_next:
                start, is_next = match.start(), False
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0 and start >= 0 and end < 0:
                end = match.end()
    return (start, end) if end >= 0 and depth == 0 else None


def _words(sql: str) -> list[str]:
    return [match["word"].upper() for match in _TOKEN.finditer(sql) if match["word"]]


def _params(sql: str) -> list[int]:
    return [int(match["param"]) for match in _TOKEN.finditer(sql) if match["param"]]


def _row_parts(inner: str) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    at = 0
    for match in _TOKEN.finditer(inner):
        if match["param"]:
            parts += [inner[at : match.start()], int(match["param"])]
            at = match.end()
    return (*parts, inner[at:])
