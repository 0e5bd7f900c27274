"""Reading an INSERT: what is found, what is refused, and that no text takes long or raises."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.core.insert_text import MAX_LENGTH, InsertText, read_insert
from plainsql_server.core.sql_tokens import tokens_of

pytestmark = pytest.mark.unit

FRAGMENTS = [
    "insert into t", "insert", "into", " ", "t", '"a""b"', "values", "(", ")", "[", "]", ",", ".", ";", "returning",
    "on", "conflict", "from", "select", "as", "'", "''", "'x'", "E'\\''", "$1", "$$", "$a$", "--", "\n", "/*", "*/",
    "U&\"x\"", "1", "1e5", "::", "with", "table", "default", "ä", "\\", '"', "$", "e'", "x'0'",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40))
def test_any_text_is_read_or_refused(fragments: list[str]) -> None:
    read = read_insert(" ".join(fragments))
    assert isinstance(read, str) or "".join(fragments).lower().find("insert") >= 0


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40), st.text(max_size=3))
def test_tokens_and_what_is_between_them_are_the_whole_text(fragments: list[str], between: str) -> None:
    sql = between.join(fragments)
    tokens = tokens_of(sql)
    if tokens is not None:
        assert all(sql[token.start : token.end] == token.text for token in tokens)
        assert all(first.end <= second.start for first, second in pairwise(tokens))


def test_an_insert_is_cut_into_its_fragments() -> None:
    read = read_insert('insert into "S" . T as n (a) values (F($1), "g"(2)) returning n.id /* x */ , 1 -- end\n ;')
    assert isinstance(read, InsertText)
    assert (read.table, read.alias, read.row, read.returning) == ('"S".T', "n", "n", "n.id /* x */ , 1")
    assert set(read.functions) >= {"f", "g"}
    assert read.with_row.endswith("/* x */ , 1, (n.*)::pg_catalog.text")
    assert read.frozen("a.b", ['"x"', "g", "y"], ['"x"', "y"]) == (
        'INSERT INTO a.b AS n ("x", y) OVERRIDING SYSTEM VALUE SELECT r."x", r.y'
        ' FROM pg_catalog.unnest($1::pg_catalog.text[]::a.b[]) AS r("x", g, y) RETURNING n.id /* x */ , 1'
    )


@pytest.mark.parametrize(
    ("values", "functions", "operators"),
    [
        ("F($1)", "f", ""),
        ("($1::pair).total", "total", ""),
        ('a."Total" . b', "Total b", ""),
        ("1 + 2", "", "+"),
        ("1 +-2", "", "+ +- -"),
        ("1 operator(public.@@) 2", "operator", "@ @@"),
        ("a like b", "", "!~~ ~~"),
        ("a not ilike b", "", "!~~* ~~*"),
        ("a between b and c", "", "< <= > >="),
        ("a in (b)", "in", "<> ="),
        ("a != b", "", "! != <> ="),
        ("a is distinct from b", "", "="),
        ("case a when b then c end", "", "="),
        ("'+' || $$-$$ -- *", "", "| ||"),
    ],
)
def test_functions_and_operators_are_found_by_name(values: str, functions: str, operators: str) -> None:
    read = read_insert(f"insert into t values ({values}\n) returning h(1), 1 % 2")
    assert isinstance(read, InsertText)
    assert set(read.functions) == {"values", *functions.split()}
    assert read.operators == tuple(sorted(operators.split()))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "not_an_insert"),
        (";;", "not_an_insert"),
        ("insert into", "unreadable"),
        ("insert into a.b.c values (1)", "unreadable"),
        ('insert into U&"a" values (1)', "unreadable"),
        ("insert into t values (1", "unreadable"),
        ("insert into t values (1])", "unreadable"),
        ("insert into t values ('a)", "unreadable"),
        ("insert into t values (1) /* /* */", "unreadable"),
        ("insert into t values ($a$ $b$)", "unreadable"),
        ("insert into t values (1); insert into t values (2)", "unreadable"),
        ("insert into t values (1) returning $1::int", "parameters_in_returning"),
        ('insert into t values (U&"f"(1))', "unreadable"),
        ("insert into overlay (select a from b)", "reads_tables"),
        ("insert into s.trim (select a from b)", "reads_tables"),
        ("insert into t as extract (select a from b)", "reads_tables"),
        ("insert into t values (1 " + "+" * 9 + " 2)", "unreadable"),
        ("insert into t values ('" + "x" * MAX_LENGTH + "')", "too_long"),
    ],
)
def test_what_cannot_be_read_is_refused(sql: str, reason: str) -> None:
    assert read_insert(sql) == reason


@pytest.mark.timing
@pytest.mark.parametrize(
    "fragment", [";", "(", "from (values (1)) ", "'' ", "/*", "$a$", "x ", "e'\\", '"a""', ", ", "+ ", "~~~~~~~ "]
)
def test_no_text_takes_long(fragment: str) -> None:
    sql = "insert into t " + fragment * ((MAX_LENGTH - 20) // len(fragment))
    began_s = time.process_time()
    read_insert(sql)
    # Half a second on a machine that is not busy; minutes if a text is read again and again.
    assert time.process_time() - began_s < 10


def test_generated_values_are_added_to_a_list_of_values() -> None:
    rest = "returning n.id, n.v x, lower(a)"
    read = read_insert(f"""insert into t as n (a, "B") values ($2, f(1, 2)), ('x)', $1 -- end\n) {rest}""")
    assert isinstance(read, InsertText)
    assert read.values is not None
    assert (read.values.columns, read.values.returned) == (frozenset(["a", "B"]), frozenset(["id", "v"]))
    assert read.repeated("s.t", ["id", "v"]) == (
        'insert into t as n (a, "B", id, v) OVERRIDING SYSTEM VALUE values ($2, f(1, 2),'
        " ((($3::pg_catalog.text[])[1])::s.t).id, ((($3::pg_catalog.text[])[1])::s.t).v), ('x)', $1 -- end\n,"
        f" ((($3::pg_catalog.text[])[2])::s.t).id, ((($3::pg_catalog.text[])[2])::s.t).v) {rest}"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "insert into t values (1) returning id",
        "insert into t (a) values (default) returning id",
        "insert into t (a) values (1)",
        "insert into t (a[1]) values (1) returning id",
        "insert into t (a.b) values (1) returning id",
        "insert into t () values (1) returning id",
        "insert into t (a) overriding user value values (1) returning id",
        "insert into t (a) select 1 returning id",
        "insert into t (a) values (1) union values (2) returning id",
        "insert into t (a) values (1), returning id",
        "insert into t default values returning id",
        "insert into t (a) select b from (values (1)) as x (b) returning id",
        "insert into t (a) select b from (values (1)) as x (b) where b = 1 returning id",
        "insert into t (a) select b from (values (1)) as x (b) order by b desc returning id",
        "insert into t (a) select b from (values (1)) as x (b) order by b limit 1 returning id",
        # The window's ORDER BY would take the column of the list.
        "insert into t (a) select x.b as c from (values (1, 2)) as x (b, c) order by c returning id",
        "insert into t (a) select distinct b from (values (1)) as x (b) order by b returning id",
    ],
)
def test_values_are_added_only_to_a_list_into_named_columns(sql: str) -> None:
    read = read_insert(sql)
    assert isinstance(read, InsertText)
    assert read.values is None


def test_generated_values_are_added_to_a_select_of_values() -> None:
    sql = "insert into t (a) select x.p::int{} from (values ($1, 0), ($2, 1)) as x (p, q) order by q returning id"
    read = read_insert(sql.format(""))
    assert isinstance(read, InsertText)
    assert read.values is not None
    assert read.values.row_count == 2
    number = "(pg_catalog.row_number() OVER (ORDER BY q))::pg_catalog.int4"
    added = f", ((($3::pg_catalog.text[])[{number}])::s.t).id"
    assert read.repeated("s.t", ["id"]) == sql.format(added).replace("(a)", "(a, id) OVERRIDING SYSTEM VALUE")


def test_no_statement_is_repeated_that_would_be_too_long() -> None:
    read = read_insert(f"insert into t (a) values {', '.join(['(1)'] * 20_000)} returning *")
    assert isinstance(read, InsertText)
    assert read.repeated("s.t", ["id"]) is not None
    assert read.repeated("s.t", ["id", "v"]) is None


@pytest.mark.parametrize(
    ("returning", "names"),
    [
        ("*", None),
        ("t.*", None),
        ("1, *", None),
        ("count(*)", set()),
        ('"Id", t.v as w, t . "x"', {"Id", "v", "x"}),
        ("id + 1, v::text, (id), case when a then b end", set()),
        ("array[id, v], w", {"w"}),
    ],
)
def test_the_columns_that_are_returned_as_they_are_are_found(returning: str, names: set[str] | None) -> None:
    read = read_insert(f"insert into t (a) values (1) returning {returning}")
    assert isinstance(read, InsertText)
    assert read.values is not None
    assert read.values.returned == names
