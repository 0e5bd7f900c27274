"""The memory of what a connection has prepared: bounded, least recently used first out, names never used twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.engine.connection.prepared import MAX_PREPARED_LENGTH, Prepared, PreparedStatements
from plainsql_server.engine.encoding.shapes import DEFAULT_ENCODING, Rendering, rendering_of

pytestmark = pytest.mark.unit


def filled(*texts: str, max_prepared: int = 3) -> PreparedStatements:
    statements = PreparedStatements(max_prepared)
    for text in texts:
        statements.add(text, Prepared(statements.new_name(), ()))
    return statements


def test_a_statement_is_found_by_its_text_and_by_nothing_else() -> None:
    statements = PreparedStatements()
    prepared = Prepared(statements.new_name(), ())
    assert statements.add("select $1", prepared) == []
    assert statements.find("select $1") is prepared
    assert statements.find("select  $1") is None
    assert statements.find("SELECT $1") is None


def test_names_are_never_used_twice_even_after_everything_was_forgotten() -> None:
    statements = PreparedStatements(2)
    names = [statements.new_name() for _ in range(5)]
    statements.clear()
    names += [statements.new_name() for _ in range(5)]
    assert len(set(names)) == 10


def test_the_least_recently_used_statement_is_evicted() -> None:
    statements = filled("a", "b", "c")
    oldest = statements.find("b")
    statements.find("a")
    statements.find("c")
    assert oldest is not None
    assert statements.add("d", Prepared(b"d", ())) == [oldest.name]
    assert statements.find("b") is None
    assert all(statements.find(text) for text in "acd")


def test_an_evicted_statement_is_closed_once() -> None:
    statements = filled("a")
    prepared = statements.find("a")
    assert prepared is not None
    assert statements.forget("a") == [prepared.name]
    assert statements.forget("a") == []
    assert statements.find("a") is None


def test_clearing_the_statements_leaves_none_to_close() -> None:
    statements = filled("a", "b", "c")
    statements.clear()
    assert [statements.find(text) for text in "abc"] == [None, None, None]
    assert statements.add("d", Prepared(b"d", ())) == []


@given(st.lists(st.tuples(st.sampled_from(["use", "forget"]), st.integers(0, 9)), max_size=60))
def test_postgresql_holds_exactly_the_remembered_statements_within_the_limit(
    steps: list[tuple[str, int]],
) -> None:
    statements = PreparedStatements(4)
    held: dict[bytes, str] = {}
    for action, number in steps:
        text = f"select {number}"
        closed: list[bytes] = []
        if action == "forget":
            closed = statements.forget(text)
        elif statements.find(text) is None:
            name = statements.new_name()
            assert name not in held
            held[name] = text
            closed = statements.add(text, Prepared(name, ()))
        for name in closed:
            del held[name]
        assert len(held) <= 4
        for name, held_text in held.items():
            found = statements.find(held_text)
            assert found is not None
            assert found.name == name


def test_long_texts_push_out_others_but_never_themselves() -> None:
    statements = filled("a", "b", max_prepared=100)
    long = "c" * MAX_PREPARED_LENGTH
    assert len(statements.add(long, Prepared(b"c", ()))) == 2
    assert statements.find(long) is not None
    assert statements.add("d", Prepared(b"d", ())) == [b"c"]
    # What was pushed out, forgotten or cleared does not count any more.
    statements.add("e", Prepared(b"e", ()))
    statements.forget("e")
    assert statements.find("d") is not None
    statements.clear()
    assert filled("a", "b", "c").add("d" * 99, Prepared(b"d", ())) != []
    assert statements.add("f" * (MAX_PREPARED_LENGTH // 2), Prepared(b"f", ())) == []
    assert statements.add("g" * (MAX_PREPARED_LENGTH // 2), Prepared(b"g", ())) == []


def test_renderings_of_an_older_generation_are_let_go() -> None:
    prepared, rendering = Prepared(b"a", ()), rendering_of((), (), DEFAULT_ENCODING)
    for generation in range(3):
        assert prepared.rendering(generation, DEFAULT_ENCODING) is None
        prepared.remember(generation, DEFAULT_ENCODING, rendering)
        assert prepared.rendering(generation, DEFAULT_ENCODING) is rendering
    assert prepared.rendering(0, DEFAULT_ENCODING) is None
    assert isinstance(rendering, Rendering)
