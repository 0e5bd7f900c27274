"""Random SQL that mostly parses, made of what a tenant can call: every function of the engine's, on odd values.

Owns the making. The same seed makes the same statement, so that a failure can be repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

_DEPTH = 3
_LITERALS = {
    "int4": ["0", "-1", "1", "2147483647", "-2147483648", "7"],
    "int8": ["0", "-9223372036854775808", "9223372036854775807", "42"],
    "text": ["''", "'a'", "E'\\\\x7f'", "repeat('é', 300)", "'%s{}[]()'", "'2026-01-01'"],
    "numeric": ["0", "'NaN'", "1e100", "-0.000000000000000001", "'Infinity'"],
    "float8": ["0", "'-0'", "'NaN'", "'-Infinity'", "1e308"],
    "bool": ["true", "false", "null"],
    "bytea": ["'\\x'", "'\\xdeadbeef'", "decode('ff00', 'hex')"],
    "timestamptz": ["now()", "'infinity'", "'-infinity'", "'0001-01-01 BC'"],
    "jsonb": ["'{}'", "'[1, [2, {\"a\": null}]]'", "'\"x\"'", "'1e400'"],
    "date": ["current_date", "'infinity'", "'4713-01-01 BC'"],
    "interval": ["'1 day'", "'-178000000 years'", "'0'"],
    "int4range": ["'empty'", "'[1,5)'", "'(,)'"],
    "point": ["'(0,0)'", "'(NaN,1e308)'"],
    "uuid": ["gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'"],
    "regclass": ["'pg_class'", "0", "'fuzzed'"],
    "inet": ["'::1'", "'0.0.0.0/0'"],
}
_TABLES = ["fuzzed", "pg_class", "pg_proc", "generate_series(1, 20)", "(values (1, 'a'), (null, ''))", "pg_settings"]


@dataclass(frozen=True)
class Function:
    """A function of the engine's: its name, its parameters' types, and its kind as the catalog says it."""

    name: str
    types: Sequence[str]
    kind: str


class Generator:
    """Statements from one seed."""

    def __init__(self, functions: Sequence[Function], seed: int) -> None:
        self._random = Random(seed)
        self._functions = functions

    def statement(self) -> str:
        pick = self._random.random()
        if pick < 0.7:
            return self.select(_DEPTH)
        if pick < 0.8:
            return (
                f"insert into fuzzed (a, b) values ({self.value(_DEPTH)}::int, {self.value(_DEPTH)}::text) returning *"
            )
        if pick < 0.9:
            return f"update fuzzed set b = {self.value(_DEPTH)}::text where {self.value(1)}::text is not null"
        if pick < 0.95:
            return f"with recursive r(n) as (select 1 union all select n + 1 from r where n < 50) {self.select(2)}"
        return f"explain (verbose, costs off) {self.select(_DEPTH)}"

    def select(self, depth: int) -> str:
        columns = ", ".join(self.value(depth) for _ in range(self._random.randint(1, 4)))
        text = f"select {columns} from {self._random.choice(_TABLES)} as t{depth}"
        if self._random.random() < 0.5:
            text += f" where {self.value(depth - 1)}::text <> ''"
        if self._random.random() < 0.2:
            text = f"{text} {self._random.choice(['union all', 'intersect', 'except'])} {self.select(0)}"
        return f"{text} limit {self._random.randint(0, 30)}"

    def value(self, depth: int) -> str:
        """An expression of some type."""
        pick = self._random.random()
        if depth <= 0 or pick < 0.2:
            return self.literal(self._random.choice(list(_LITERALS)))
        if pick < 0.3:
            return f"(select {self.value(depth - 1)} limit 1)"
        if pick < 0.4:
            return f"array[{self.literal('int4')}, {self.literal('int4')}]"
        if pick < 0.5:
            return (
                f"case when {self.literal('bool')} then {self.value(depth - 1)}::text else {self.literal('text')} end"
            )
        return self.call(depth)

    def call(self, depth: int) -> str:
        function = self._random.choice(self._functions)
        arguments = [
            self.literal(name) if self._random.random() < 0.8 else f"{self.value(depth - 1)}::{name}"
            for name in function.types
        ]
        over = " over ()" if function.kind == "w" else ""
        return f"{function.name}({', '.join(arguments)}){over}"

    def literal(self, name: str) -> str:
        if self._random.random() < 0.05:
            return f"null::{name}"
        return f"{self._random.choice(_LITERALS[name])}::{name}"


FUNCTIONS = f"""
    select p.proname, array_to_string(array(select t.typname from unnest(p.proargtypes) with ordinality a(id, n)
        join pg_type t on t.oid = a.id order by n), ',') as types, p.prokind::text as kind
    from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind <> 'p' and p.provariadic = 0
      and has_function_privilege(p.oid, 'execute')
      and not exists (select from unnest(p.proargtypes) a(id) join pg_type t on t.oid = a.id
                      where t.typname <> all (array{sorted(_LITERALS)}))
"""
