"""Random requests to the routes of the fast lane, odd in every way that a client's may be.

They are for `test_fast_lane_fuzz.py`:

    requests = Requests(random.Random(seed))
    sent = requests.next()

Owns the grammar. Half of the statements repeat with other values, because such requests take the fast lane; the others
are what it must leave alone. Nothing here depends on the time, so that two databases that get the same requests in the
same order stay equal.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

SETUP = (
    "create table item (id serial primary key, name text unique, price numeric, n int8, tags text[], doc jsonb)",
    "create type mood as enum ('good', 'bad')",
    "insert into item (name, price, n) select 'item ' || g, g * 1.5, g from generate_series(1, 200) g",
)
CODE = (
    "create function leave(value text) returns text language sql as"
    " $$ select pg_catalog.set_config('app.left', value, false) $$",
    "create view named as select id, name from item",
)
TYPES = (
    "int", "int8", "text", "numeric", "float8", "boolean", "jsonb", "json", "int[]", "text[]", "bytea", "date", "uuid",
    "time", "interval", "bpchar", "money", "inet", "mood", "smallint", "varchar(3)", "timestamptz",
)  # fmt: skip
TEXTS = (
    "", "x", "a b", "é", "😀", 'q"q', "a\\b", "'", "[", "]", "[1]", "{1,2}", "],", '"]}', "null", "true", "1", "-5",
    "NaN", "2026-11-16", "\u0001", "\n", "\t", "/", "a" * 300, "good", "$1", "--", "/*", "\u2028", "\ufeff", "\u0000",
)  # fmt: skip
NUMBERS = (
    "0", "1", "-1", "-0", "7", "150", "2147483647", "2147483648", "9223372036854775807", "12345678901234567890",
    "1.5", "-0.0", "1e3", "1E-2", "1e400", "0.1e+1", "123456789.987654321",
)  # fmt: skip
OTHERS = ("null", "true", "false", "[]", "[1, 2]", '["a"]', "{}", '{"a": [1, {"b": null}]}', "[[1], [2]]")
WRONG = ("01", "1.", ".5", "+1", "tru", "NaN", "Infinity", "'x'", '"\\x"', '"\\ud800"', "", "1 2", '"a', "{", "]")

# Each with its parameters: an int, a text, a number of rows or of bytes, or anything.
REPEATED: tuple[tuple[str, str], ...] = (
    ("select id, name, price from item where id = $1", "i"),
    ("select id from item where name = $1", "t"),
    ("select name, n from item where id = $1::int and n > $2::int8", "ii"),
    ("insert into item (name, price) values ($1, $2) returning id, name, price", "ti"),
    ("insert into item (name) values ($1) on conflict (name) do update set n = 1 returning id", "t"),
    ("update item set price = price + 1 where id = $1", "i"),
    ("update item set name = $2 where id = $1", "it"),
    ("delete from item where id = $1", "i"),
    ("select count(*), max(id) from item where n < $1::int8", "i"),
    ("select g from generate_series(1, $1::int) g", "s"),
    ("select g, g * $2::numeric as m from generate_series(1, $1::int) g", "si"),
    ("select id, name from item where id < $1 order by id", "s"),
    ("select repeat('x', $1::int) as x", "b"),
    ("select $1::text || ']' as a, '[' as b", "t"),
)
SINGLE = (
    "select id, name from item where id = {i}", "select {i} as a, 'b' as b", "values (1, 'a'), ({i}, null)",
    "insert into item (name) values ('new {i}')", "update item set n = {i} where id = 3",
    "delete from item where id = {i}", "select 1/({i} % 3) as q", "select * from item order by id limit {s}", "", ";",
    "select nothing", "select 1; select 2",
    "select lastval()", "select currval('item_id_seq')", "select nextval('item_id_seq')",
    "select setval('item_id_seq', {i} + 100000)",
    "with new as (insert into item (name) values ('w{i}') returning id) table new",
    "select set_config('app.left', '{i}', false) as x", "select current_setting('app.left', true) as x",
    "create temporary table gone (x int)", "select to_regclass('pg_temp.gone')::text as gone", "set app.left = '{i}'",
    "show app.left", "reset all", "begin", "commit", "listen x", "copy item to stdout", "explain (costs off) select 1",
    "select 'good'::mood as m", "select array['good'::mood]", "select row(1, 'a') as r", "select null as n", "select",
    "select 1 as a, 2 as a", "select E'\\\\x{i}' as e", "/* comment {i} */ select 1 as a", "select 1 -- {i}",
    "select pg_typeof({i})::text as t", "select {i}::bigint * 1000000000000 as big", "select 'NaN'::float8 as nan",
    "select from item where id = {i}", "truncate nothing", "discard sequences",
)  # fmt: skip
CODED = (
    "select leave('{i}') as x",
    "select current_setting('app.left', true) as x",
    "select name from named where id = {i}",
)
OPTIONS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("row_format", ("array", "object", "arrays", 1)), ("big_numbers", ("string", "number", None)),
    ("max_rows", (0, 1, 5, 31, 32, 33, 1000, -1, "1", 10**20)), ("timeout_ms", (30_000, 10**25, 0, -1, 1.5, "5")),
    ("read_only", (True, False, None, 1)), ("unknown", (1,)),
)  # fmt: skip
# One for each connection: the lines of its head but for the first, the key, the database and the length.
STYLES: tuple[tuple[str, ...], ...] = (
    ("Host: x", "{key}", "{database}", "Content-Type: application/json", "{length}"),
    ("{length}", "host: x", "{key}", "{database}", "content-type: application/json; charset=utf-8"),
    ("HOST:x", "{key}", "accept: */*", "{database}", "{length}", "X-Request-Id: req_abcdefgh{i}"),
    ("Host: x", "{database}", "{key}", "Origin: https://x.example", "Accept: application/json", "{length}"),
    ("Host: x", "{key}", "{database}", "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e473{i}-00f067aa0ba902b7-01",
     "{length}"),
    ("Host: x", "X-Request-Id: not an id", "{key}", "{length}", "{database}", "Connection: keep-alive",
     "X-Long: " + "l" * 900),
)  # fmt: skip
# The same for the route of the Neon driver, with a connection string or without.
SQL_STYLES: tuple[tuple[str, ...], ...] = (
    ("Host: x", "{string}", "Neon-Raw-Text-Output: true", "Neon-Array-Mode: true", "{length}"),
    ("{length}", "host: x", "{string}", "content-type: text/plain;charset=UTF-8", "accept: */*"),
    ("Host: x", "{key}", "{database}", "neon-array-mode: true", "{length}", "X-Request-Id: req_abcdefgh{i}"),
    ("Host: x", "{string}?sslmode=require", "Neon-Raw-Text-Output: true", "Origin: https://x.example", "{length}"),
    ("Host: x", "Neon-Array-Mode: false", "{length}", "{string}", "Neon-Batch-Isolation-Level: Serializable"),
    ("Host: x", "{string}", "X-Request-Id: not an id", "Neon-Raw-Text-Output: TRUE", "{length}", "X-Database: other"),
)  # fmt: skip


@dataclass(frozen=True)
class Sent:
    """A request: the number of its connection, path, lines of its head, body, and at which bytes it is cut in two."""

    connection: int
    path: str
    lines: tuple[str, ...]
    body: bytes
    cuts: tuple[float, ...]
    is_chunked: bool = False


class Requests:
    """An endless number of requests."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def next(self) -> Sent:
        random = self._random
        connection = random.randrange(len(STYLES))
        path, body = self._path_and_body()
        styles = SQL_STYLES if path == "/sql" else STYLES
        lines = styles[connection] if random.random() < 0.97 else random.choice(styles)
        lines = tuple(line.replace("{i}", str(random.randrange(10))) for line in lines)
        cuts = tuple(sorted(random.random() for _ in range(random.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 2)))))
        return Sent(connection, path, lines, body, cuts, is_chunked=random.random() < 0.01)

    def _path_and_body(self) -> tuple[str, bytes]:
        kind = self._random.random()
        if kind < 0.45:
            return "/v1/query", self._query()
        if kind < 0.7:
            return "/sql", self._for_neon()
        if kind < 0.75:
            return "/query", self._single(SINGLE).encode("utf-8", "surrogatepass")
        return "/v1/transaction", self._transaction()

    def _transaction(self) -> bytes:
        random = self._random
        statements = [self._statement() for _ in range(random.choice((1, 1, 2, 2, 3, 5)))]
        members = [("statements", f"[{', '.join(statements)}]")]
        if random.random() < 0.2:
            members.append(random.choice((("read_only", "true"), ("max_rows", "5"), ("row_format", '"array"'))))
        return self._object(members)

    def _statement(self, name: str = "sql") -> str:
        random = self._random
        if random.random() < 0.85:
            sql, wanted = random.choice([each for each in REPEATED if leaves_sequences_alone(each[0])])
            return f'{{"{name}": {self._string(sql, 0)}, "params": {self._params(wanted)}}}'
        text = self._string(self._single([each for each in SINGLE if leaves_sequences_alone(each)]), 0.05)
        return text if name == "sql" else f'{{"{name}": {text}}}'

    def _single(self, texts: Sequence[str]) -> str:
        return self._random.choice(texts).format(i=self._random.randrange(300), s=self._random.randrange(80))

    def _query(self) -> bytes:
        random = self._random
        kind = random.random()
        if kind < 0.7:
            sql, wanted = random.choice(REPEATED)
            members = [("sql", self._string(sql, 0)), ("params", self._params(wanted))]
        elif kind < 0.82:
            sql = f"select $1::{random.choice(TYPES)} as v"
            members = [("sql", self._string(sql, 0)), ("params", self._params("a"))]
        else:
            members = [("sql", self._string(self._single(SINGLE if kind < 0.96 else CODED), 0.05))]
            if random.random() < 0.1:
                members.append(("params", self._params("a" * random.randrange(3))))
        members += self._options()
        if random.random() < 0.1:
            random.shuffle(members)
        if random.random() < 0.02:
            members.append(random.choice(members))
        return self._object(members)

    def _for_neon(self) -> bytes:
        random = self._random
        if random.random() < 0.1:
            statements = [self._statement("query") for _ in range(random.choice((0, 1, 2, 3)))]
            return self._object([("queries", f"[{', '.join(statements)}]")])
        if random.random() < 0.7:
            sql, wanted = random.choice(REPEATED)
        elif random.random() < 0.6:
            sql, wanted = f"select $1::{random.choice(TYPES)} as v", "a"
        else:
            sql, wanted = self._single(SINGLE if random.random() < 0.9 else CODED), ""
        members = [("query", self._string(sql, 0.02)), ("params", self._params(wanted))]
        if random.random() < 0.15:
            members.append(
                random.choice(
                    (
                        ("arrayMode", "true"),
                        ("arrayMode", "false"),
                        ("arrayMode", "null"),
                        ("arrayMode", "1"),
                        ("unknown", "[1]"),
                        ("queries", "null"),
                        ("queries", "[]"),
                        ("params", self._params(wanted)),
                    )
                )
            )
        if random.random() < 0.1:
            random.shuffle(members)
        return self._object(members)

    def _options(self) -> list[tuple[str, str]]:
        random = self._random
        if random.random() < 0.7:
            return []
        if random.random() < 0.4:
            return [("max_rows", random.choice(("1", "5", "32")))]
        chosen = random.sample(OPTIONS, random.choice((1, 1, 2)))
        return [(name, json.dumps(random.choice(values))) for name, values in chosen]

    def _params(self, wanted: str) -> str:
        random = self._random
        if random.random() < 0.03:
            wanted += random.choice(("a", "aa", "a" * 40))
        values = [self._value(kind) for kind in wanted]
        gap = random.choice(("", " ", "  ", "\n"))
        return "[" + (gap if random.random() < 0.1 else "") + f",{gap}".join(values) + "]"

    def _value(self, kind: str) -> str:
        random = self._random
        if kind == "s":
            # Not so many that the rest of a truncated result takes long, and is cancelled at some time.
            return str(random.choice((0, 1, 2, 5, 6, 20, 31, 32, 33, 64, 200)))
        if kind == "b":
            return str(random.choice((0, 1, 100, 8_000, 9_000, 70_000)))
        if random.random() < 0.02:
            return random.choice(WRONG)
        if kind == "a" or random.random() < 0.05:
            kind = random.choice("intoo")
        if kind == "i":
            return str(random.randrange(250))
        if kind == "t":
            return self._string(random.choice((f"name {random.randrange(100)}", random.choice(TEXTS))), 0.1)
        return random.choice(NUMBERS if kind == "n" else OTHERS)

    def _string(self, text: str, escaped: float) -> str:
        """A JSON string, in one of the forms that mean the same."""
        written = json.dumps(text, ensure_ascii=self._random.random() < 0.5)
        if self._random.random() >= escaped:
            return written
        return '"' + "".join(f"\\u{ord(each):04x}" if ord(each) < 0x10000 else each for each in text) + '"'

    def _object(self, members: Sequence[tuple[str, str]]) -> bytes:
        random = self._random
        odd = random.random() < 0.1
        colon, comma = (random.choice((" : ", ":\n")), random.choice((" ,", ",\t"))) if odd else (": ", ", ")
        text = "{" + comma.join(f'"{name}"{colon}{value}' for name, value in members) + "}"
        if random.random() < 0.01:
            at = random.randrange(len(text))
            text = text[:at] + random.choice(("", "]", '"', "}", "\\")) + text[at + 1 :]
        body = text.encode("utf-8", "surrogatepass")
        return body + b"\xff" if random.random() < 0.005 else body


def leaves_sequences_alone(sql: str) -> bool:
    """Whether a statement takes no value of a sequence.

    If a transaction fails at a later parameter, the two paths may have run a different number of the statements before
    it, and values of a sequence are not given back.
    """
    return not any(word in sql for word in ("insert", "nextval", "setval"))
