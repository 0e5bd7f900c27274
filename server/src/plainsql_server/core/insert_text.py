"""Reads an INSERT so that it can be frozen: repeated later with the same rows, whatever defaults and sequences gave.

    insert = read_insert("insert into t (a) values ($1) returning id")    # an InsertText, or the reason why not

The text decides only what it can: whether the rows may depend on other tables, and where the RETURNING list is. What
the table is like, PostgreSQL knows; see `engine/execution/freezing.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plainsql_server.core.sql_tokens import Token, TokenKind, tokens_of

# A longer text takes too much time to read.
MAX_LENGTH = 128 * 1024

_NAMES = (TokenKind.WORD, TokenKind.QUOTED_NAME)
# Functions whose arguments are separated by FROM.
_FROM_ARGUMENTS = frozenset(["EXTRACT", "SUBSTRING", "TRIM", "OVERLAY"])
_OPENING = {"(": ")", "[": "]"}

# What operators are made of. PostgreSQL decides where one of several in a row ends, so all parts count, up to a length.
_OPERATOR_CHARACTERS = frozenset("+-*/<>=~!@#%^&|`?")
_MAX_OPERATOR_LENGTH = 8
# Operators that PostgreSQL looks up by name for a word.
_IMPLIED = {
    "LIKE": ("~~", "!~~"), "ILIKE": ("~~*", "!~~*"), "SIMILAR": ("~", "!~"), "BETWEEN": ("<", ">", "<=", ">="),
    "IN": ("=", "<>"), "DISTINCT": ("=",), "NULLIF": ("=",), "CASE": ("=",),
}  # fmt: skip

# The service accepts statements up to this length.
_MAX_REPEATED_LENGTH = 1 << 20
# Signs around an added value, and the number of its row.
_ADDED_LENGTH = 16

Nesting = tuple[list[int], dict[int, int]]
Places = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ValuesText:
    """An INSERT of a list of VALUES into named columns, perhaps by way of a SELECT: how to add values to it."""

    columns: frozenset[str]
    # The position of the parenthesis that closes the list of columns.
    columns_end: int
    # Where values are to be added: positions, and the number of the row there, as an expression.
    places: Places
    row_count: int
    # The columns that are returned as they are; None stands for all.
    returned: frozenset[str] | None
    # The number of the first parameter that is free.
    parameter: int


@dataclass(frozen=True, slots=True)
class InsertText:
    """An INSERT, cut into parts."""

    # Without what follows the last token.
    sql: str
    # The table as it was written, with its schema if there is one.
    table: str
    alias: str | None
    # What RETURNING refers to the new row by: the alias, or the table's own name.
    row: str
    # The RETURNING list, or None.
    returning: str | None
    # The functions and operators that may be called for the new rows' values, by name.
    functions: tuple[str, ...]
    operators: tuple[str, ...]
    # Set if it is written in a form to which values can be added.
    values: ValuesText | None = None

    @property
    def with_row(self) -> str:
        """The statement with one more column at the end of its result: the new row as text."""
        return f"{self.sql}{' RETURNING ' if self.returning is None else ', '}({self.row}.*)::pg_catalog.text"

    def frozen(self, table: str, columns: Sequence[str], inserted: Sequence[str]) -> str:
        """The statement that inserts rows given as an array of texts. Names must be quoted already.

        The rows have all `columns`, in this order. The statement names them, so that values stay with their columns
        even if the table has been made again with another order.
        """
        alias = "" if self.alias is None else f" AS {self.alias}"
        returning = "" if self.returning is None else f" RETURNING {self.returning}"
        values = ", ".join([f"r.{column}" for column in inserted])
        return (
            f"INSERT INTO {table}{alias} ({', '.join(inserted)}) OVERRIDING SYSTEM VALUE SELECT {values}"
            f" FROM pg_catalog.unnest($1::pg_catalog.text[]::{table}[]) AS r({', '.join(columns)}){returning}"
        )

    def repeated(self, table: str, columns: Sequence[str]) -> str | None:
        """The statement as it is, and with values of these columns, taken from rows in one more parameter.

        None if that would be too long: each row names all of these columns, and the table with each of them.
        """
        assert self.values is not None
        end, rows = self.values.columns_end, f"(${self.values.parameter}::pg_catalog.text[])"
        added_length = sum([len(rows) + len(table) + len(column) + _ADDED_LENGTH for column in columns])
        if len(self.sql) + len(self.values.places) * added_length > _MAX_REPEATED_LENGTH:
            return None
        parts = [self.sql[:end], *[f", {column}" for column in columns], ") OVERRIDING SYSTEM VALUE"]
        end += 1
        for place, number in self.values.places:
            # One row is read for each value. If the array were cast, PostgreSQL would read all of them each time.
            parts += [self.sql[end:place], *[f", (({rows}[{number}])::{table}).{column}" for column in columns]]
            end = place
        return "".join([*parts, self.sql[end:]])


def read_insert(sql: str) -> InsertText | str:
    """The parts of an INSERT, or a code for why it can't be frozen. Takes about two microseconds per token."""
    if len(sql) > MAX_LENGTH:
        return "too_long"
    tokens = tokens_of(sql)
    if tokens is None:
        return "unreadable"
    words = [token.word for token in tokens]
    first = next((at for at, word in enumerate(words) if word != ";"), 0)
    while words and words[-1] == ";":
        words.pop()
    tokens = tokens[first : len(words)]
    words = [token.word for token in tokens]
    if words[:1] == ["WITH"]:
        return "with_clause"
    if words[:2] != ["INSERT", "INTO"]:
        return "not_an_insert"
    return "unreadable" if ";" in words else _read(sql, tokens)


def _read(sql: str, tokens: list[Token]) -> InsertText | str:
    name_end = _end_of_name(tokens)
    if name_end is None:
        return "unreadable"
    after, alias = name_end, None
    if _word(tokens, after) == "AS" and _kind(tokens, after + 1) in _NAMES:
        alias, after = tokens[after + 1].text, after + 2
    nesting = _nesting(tokens)
    if nesting is None:
        return "unreadable"
    returning = _returning(tokens, nesting[0], after)
    source = range(after, len(tokens) if returning is None else returning)
    if reason := _unfreezable(tokens, nesting, source, returning):
        return reason
    operators = _operators(tokens, source)
    if operators is None:
        return "unreadable"
    end = tokens[-1].end
    return InsertText(
        sql[:end],
        "".join([token.text for token in tokens[2:name_end]]),
        alias,
        alias or tokens[name_end - 1].text,
        None if returning is None else sql[tokens[returning].end : end].strip(),
        tuple(sorted({_folded(tokens[at]) for at in source if _may_be_call(tokens, at)})),
        operators,
        _values(tokens, nesting, source, returning),
    )


def _end_of_name(tokens: list[Token]) -> int | None:
    """The index after the table's name, or None if it has three parts or is written with Unicode escapes."""
    if _kind(tokens, 2) not in _NAMES:
        return None
    if _word(tokens, 3) != ".":
        return 3
    return 5 if _kind(tokens, 4) in _NAMES and _word(tokens, 5) != "." else None


def _nesting(tokens: list[Token]) -> Nesting | None:
    """For each token the index of the parenthesis that it is in, or -1; and pairs of parentheses.

    None if they don't match.
    """
    openers: list[int] = []
    pairs: dict[int, int] = {}
    stack = [-1]
    for index, token in enumerate(tokens):
        if token.word in (")", "]"):
            if stack[-1] < 0 or _OPENING[tokens[stack[-1]].word] != token.word:
                return None
            pairs[stack.pop()] = index
        openers.append(stack[-1])
        if token.word in _OPENING:
            stack.append(index)
    return (openers, pairs) if len(stack) == 1 else None


def _returning(tokens: list[Token], openers: list[int], first: int) -> int | None:
    """The index of RETURNING. After AS or a point, the word is a name."""
    for at in range(first, len(tokens)):
        if tokens[at].word == "RETURNING" and openers[at] < 0 and tokens[at - 1].word not in ("AS", "."):
            return at
    return None


def _unfreezable(tokens: list[Token], nesting: Nesting, source: range, returning: int | None) -> str | None:
    """A code for why it can't be frozen."""
    for at in source:
        word = tokens[at].word
        if tokens[at].kind is TokenKind.UNICODE_NAME:
            # It may be the name of a function.
            return "unreadable"
        if word == "ON" and _word(tokens, at + 1) == "CONFLICT":
            return "on_conflict"
        if word in ("TABLE", "JOIN") or (word == "FROM" and not _is_harmless_from(tokens, nesting, at, source.start)):
            return "reads_tables"
    if returning is not None and any(token.kind is TokenKind.PARAMETER for token in tokens[returning:]):
        return "parameters_in_returning"
    return None


def _is_harmless_from(tokens: list[Token], nesting: Nesting, at: int, first: int) -> bool:
    """Whether a FROM reads no table: it belongs to a function or to IS DISTINCT FROM, or it reads VALUES alone."""
    openers, pairs = nesting
    opener = openers[at]
    if tokens[at - 1].word == "DISTINCT" and tokens[at - 2].word in ("IS", "NOT"):
        return True
    # Before `first`, the word is the name of the table.
    if opener > first and tokens[opener - 1].word in _FROM_ARGUMENTS:
        return True
    if _word(tokens, at + 1) != "(" or _word(tokens, at + 2) != "VALUES":
        return False
    # A comma after the list of VALUES, its alias and its columns adds something else to read from.
    after = pairs[at + 1] + 1
    after += _word(tokens, after) == "AS"
    after += _kind(tokens, after) in _NAMES
    if _word(tokens, after) == "(":
        after = pairs[after] + 1
    return _word(tokens, after) != ","


def _may_be_call(tokens: list[Token], at: int) -> bool:
    # `value.name` calls a function as `name(value)` does, unless it is a field of the value.
    return tokens[at].kind in _NAMES and (_word(tokens, at + 1) == "(" or tokens[at - 1].word == ".")


def _operators(tokens: list[Token], source: range) -> tuple[str, ...] | None:
    """The names of all operators that may be used, or None if they can't be determined."""
    found: set[str] = set()
    runs: set[str] = set()
    run, end = "", -1
    for token in tokens[source.start : source.stop]:
        if token.word in _OPERATOR_CHARACTERS:
            if token.start != end:
                runs.add(run)
                run = ""
            run, end = run + token.word, token.end
        elif token.word in _IMPLIED:
            found.update(_IMPLIED[token.word])
    runs.add(run)
    if any(len(each) > _MAX_OPERATOR_LENGTH for each in runs):
        return None
    for each in runs:
        found.update(each[start:stop] for stop in range(len(each) + 1) for start in range(stop))
    if "!=" in found:
        found.add("<>")
    return tuple(sorted(found))


def _values(tokens: list[Token], nesting: Nesting, source: range, returning: int | None) -> ValuesText | None:
    """How to add values to a list of VALUES into named columns; None if it is something else or has a DEFAULT."""
    pairs, at = nesting[1], source.start
    if _word(tokens, at) != "(" or returning is None or "DEFAULT" in [tokens[each].word for each in source]:
        return None
    columns_end = pairs[at]
    names, commas = tokens[at + 1 : columns_end : 2], tokens[at + 2 : columns_end : 2]
    if not names or any(each.kind not in _NAMES for each in names) or any(each.word != "," for each in commas):
        return None
    rows = range(columns_end + 1, source.stop)
    found = _listed(tokens, pairs, rows) or _selected(tokens, nesting, rows)
    if found is None:
        return None
    numbers = [int(each.text[1:]) for each in tokens if each.kind is TokenKind.PARAMETER]
    return ValuesText(
        frozenset(map(_folded, names)),
        tokens[columns_end].start,
        *found,
        _returned(tokens[returning + 1 :]),
        max(numbers, default=0) + 1,
    )


def _listed(tokens: list[Token], pairs: dict[int, int], rows: range) -> tuple[Places, int] | None:
    """For `VALUES (…), (…)`: a place in each row, and how many there are."""
    ends, at = list[int](), rows.start
    if _word(tokens, at) != "VALUES":
        return None
    while at == rows.start or _word(tokens, at) == ",":
        if _word(tokens, at + 1) != "(":
            return None
        ends.append(pairs[at + 1])
        at = ends[-1] + 1
    return (
        None
        if at != rows.stop
        else (tuple([(tokens[end].start, str(row)) for row, end in enumerate(ends, 1)]), len(ends))
    )


def _selected(tokens: list[Token], nesting: Nesting, rows: range) -> tuple[Places, int] | None:
    """For `SELECT … FROM (VALUES (…), (…)) AS a (…) ORDER BY b`, as ORMs write it: a place, and the number of rows."""
    openers, pairs = nesting
    if _word(tokens, rows.start) != "SELECT" or _word(tokens, rows.start + 1) in ("DISTINCT", "ALL"):
        return None
    at = next((each for each in rows if tokens[each].word == "FROM" and openers[each] < 0), rows.stop)
    if _word(tokens, at + 1) != "(":
        return None
    end = pairs[at + 1]
    listed = _listed(tokens, pairs, range(at + 2, end))
    after = end + 1 + (_word(tokens, end + 1) == "AS")
    after += _kind(tokens, after) in _NAMES
    if listed is None or _word(tokens, after) != "(":
        return None
    rest = tokens[pairs[after] + 1 : rows.stop]
    if [each.word for each in rest[:2]] != ["ORDER", "BY"] or len(rest) != 3 or rest[2].kind not in _NAMES:
        return None
    if _folded(rest[2]) in [_folded(each) for each in tokens[rows.start + 1 : at] if each.kind in _NAMES]:
        # It may be the name of a result, and a window's ORDER BY does not know these.
        return None
    number = f"(pg_catalog.row_number() OVER (ORDER BY {rest[2].text}))::pg_catalog.int4"
    return ((tokens[at - 1].end, number),), len(listed[0])


def _returned(tokens: list[Token]) -> frozenset[str] | None:
    """The columns that a RETURNING list has as they are; None if it has all of them."""
    found, items, depth = set[str](), [list[Token]()], 0
    for token in tokens:
        depth += (token.word in _OPENING) - (token.word in _OPENING.values())
        if token.word == "," and depth == 0:
            items.append([])
        else:
            items[-1].append(token)
    for item in items:
        column = item[2:] if _word(item, 1) == "." else item
        if _word(column, 0) == "*" and len(column) == 1:
            return None
        # Its alias may follow, with AS or without.
        alias = column[1:] if _word(column, 1) != "AS" else column[2:]
        if _kind(column, 0) in _NAMES and (not alias or (len(alias) == 1 and alias[0].kind in _NAMES)):
            found.add(_folded(column[0]))
    return frozenset(found)


def _folded(token: Token) -> str:
    """A name as PostgreSQL stores it."""
    return unquoted(token.text) if token.kind is TokenKind.QUOTED_NAME else token.text.lower()


def unquoted(name: str) -> str:
    """A name without the quotes that it may have."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _word(tokens: list[Token], at: int) -> str:
    return tokens[at].word if at < len(tokens) else ""


def _kind(tokens: list[Token], at: int) -> TokenKind | None:
    return tokens[at].kind if at < len(tokens) else None
