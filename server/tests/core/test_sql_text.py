import time
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.core.errors import RequestError
from plainsql_server.core.sql_text import first_words, is_empty, refuse_what_has_no_place

pytestmark = pytest.mark.unit

TRANSACTION_CONTROL = [
    "BEGIN", "BEGIN WORK", "BEGIN ISOLATION LEVEL SERIALIZABLE", "START TRANSACTION", "COMMIT", "COMMIT AND CHAIN",
    "COMMIT PREPARED 'a'", "END", "END WORK", "ROLLBACK", "ROLLBACK TO SAVEPOINT a", "ROLLBACK PREPARED 'a'", "ABORT",
    "SAVEPOINT a", "RELEASE SAVEPOINT a", "RELEASE a", "PREPARE TRANSACTION 'a'", "SET TRANSACTION READ WRITE",
]  # fmt: skip

# What PostgreSQL's parser skips before a statement, so what a forbidden word can hide behind.
DISGUISES = [
    "{}", "  {}", "\t\r\n\f{}", ";{}", " ; ;;\n{}", "--\n{}", "-- SELECT\n{}", "-- SELECT\r{}", "/**/{}", "/* */ {}",
    "/* SELECT */{}", "/* a /* nested */ SELECT */{}", "/***/{}", "/* ' */{}", "/* -- */{}", "-- /*\n{}",
    "/* a */ -- b\n /* c */ ; {}", "/* é 😀 */{}", "{};", "{}--", "{}/**/",
]  # fmt: skip


def code_of(sql: str) -> str:
    with pytest.raises(RequestError) as refused:
        refuse_what_has_no_place(sql)
    return refused.value.code


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select 1", ["SELECT"]),
        ("SeLeCt now", ["SELECT", "NOW"]),
        ("insert into t values (1)", ["INSERT", "INTO"]),
        ("", []),
        ("   ", []),
        (";;;", []),
        ("-- only a comment", []),
        ("/* only a comment */", []),
        ("/* never closed", []),
        ("/* closed /* once */ begin", []),
        ("(select 1)", []),
        ("'begin'", []),
        ('"begin"', []),
        ('U&"begin"', ["U"]),
        ("$$begin$$", []),
        ("$1", []),
        ("1 begin", []),
        ("- - begin", []),
        ("/ * begin */", []),
        ("-- a\r\nselect 1", ["SELECT"]),
        ("-- a\u2028begin", []),
        ("-- a\vbegin", []),
        ("select/**/distinct 1", ["SELECT", "DISTINCT"]),
        ("select--\ndistinct", ["SELECT", "DISTINCT"]),
        ("select'x'", ["SELECT"]),
        ("begin_ now", ["BEGIN_", "NOW"]),
        ("begin$1", ["BEGIN$1"]),
        ("start\ntransaction", ["START", "TRANSACTION"]),
        ("/*/ begin */select", ["SELECT"]),
        ("/*/*/ begin */*/select", ["SELECT"]),
        ("/****/select", ["SELECT"]),
        ("\ufeffselect", []),
    ],
)
def test_the_first_words_are_those_that_the_engine_would_read(sql: str, words: list[str]) -> None:
    assert first_words(sql) == words


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\u3000", "\x85", "\x1c", "\x1f"])
def test_unicode_white_space_is_not_white_space_for_postgresql(blank: str) -> None:
    assert first_words(f"{blank}select") == []


@pytest.mark.parametrize("word", ["beginé", "begin😀", "commité", "copyé"])
def test_a_keyword_followed_by_non_ascii_letters_is_another_word(word: str) -> None:
    assert first_words(word) == []


def test_the_requested_number_of_words_is_read() -> None:
    assert first_words("a b c d", 3) == ["A", "B", "C"]
    assert first_words("a b c d", 0) == []


nested = st.recursive(
    st.sampled_from(["", " ", "x", "'", '"', "--", ";", "\n", "begin", "* /", "$$"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: f"/* {' '.join(parts)} */"),
    max_leaves=8,
).map(lambda inside: f"/* {inside} */")
skipped = st.one_of(nested, st.sampled_from([" ", "\t", "\n", "\r", "\f", ";", "-- begin '\n", "-- /*\r"]))


@given(st.lists(skipped, max_size=8))
def test_comments_and_white_space_do_not_hide_the_first_word(parts: list[str]) -> None:
    assert first_words("".join(parts) + "commit work") == ["COMMIT", "WORK"]


@given(st.text())
def test_any_text_has_first_words_or_none_and_raises_nothing(sql: str) -> None:
    assert all(word == word.upper() and word.isascii() for word in first_words(sql))


def best_s(work: Callable[[], object]) -> float:
    """The least processor time that it took, of three times."""
    took_s = []
    for _ in range(3):
        began_s = time.process_time()
        work()
        took_s.append(time.process_time() - began_s)
    return min(took_s)


@pytest.mark.timing
def test_a_megabyte_of_comments_before_the_first_word_is_refused_at_once() -> None:
    # Linear is not enough: a megabyte of them would delay other requests. It takes no longer than what is read.
    for comment in ("/**/", "-- \n", "-- \r"):
        some, many = comment * 16_000 + "select", comment * 250_000 + "commit"
        assert first_words(some) == ["SELECT"]
        assert code_of(many) == "malformed_request"
        assert best_s(partial(code_of, many)) < 4 * best_s(partial(first_words, some))
    some, many = "/*" * 30_000, "/*" * 500_000
    assert first_words(some) == []
    assert code_of(many) == "malformed_request"
    assert best_s(partial(code_of, many)) < 4 * best_s(partial(first_words, some))
    assert code_of("/*" + "x" * 100_000 + "*/ commit") == "malformed_request"
    assert code_of("set /*" + "x" * 100_000 + "*/ transaction read write") == "malformed_request"
    assert first_words("select /*" + "x" * 100_000 + "*/ a") == ["SELECT"]


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("command", TRANSACTION_CONTROL)
def test_transaction_control_is_refused_in_any_disguise(command: str, disguise: str) -> None:
    assert code_of(disguise.format(command)) == "transaction_control"
    assert code_of(disguise.format(command.lower())) == "transaction_control"


def test_the_refusal_of_transaction_control_names_the_route_for_it() -> None:
    with pytest.raises(RequestError) as refused:
        refuse_what_has_no_place("begin")
    assert "/v1/transaction" in (refused.value.hint or "")


@pytest.mark.parametrize("sql", ["LISTEN a", "unlisten *", "/* */ NOTIFY a, 'b'", ";notify a"])
def test_notifications_are_refused(sql: str) -> None:
    assert code_of(sql) == "listen_not_supported"


@pytest.mark.parametrize("sql", ["COPY t FROM STDIN", "copy (select 1) to stdout", "-- x\ncopy t to '/tmp/x'"])
def test_copy_is_refused(sql: str) -> None:
    assert code_of(sql) == "copy_not_supported"


@pytest.mark.parametrize("sql", ["\0", "select '\0'", "select 1\0", "\0begin"])
def test_a_nul_character_is_refused(sql: str) -> None:
    assert code_of(sql) == "null_character"


@pytest.mark.parametrize(
    ("sql", "first"),
    [
        ("select 1", "SELECT"),
        ("select 'begin; commit'", "SELECT"),
        ("prepare p as select 1", "PREPARE"),
        ("prepare transactions as select 1", "PREPARE"),
        ("set local x.y = 1", "SET"),
        ("set transactions.x = 1", "SET"),
        ("beginning", "BEGINNING"),
        ("(select 1)", ""),
        ("", ""),
        ("do $$begin commit; end$$", "DO"),
        ("create table copy (listen int)", "CREATE"),
        ("/* begin */ select 1 -- commit", "SELECT"),
    ],
)
def test_everything_else_is_let_through_with_its_first_word(sql: str, first: str) -> None:
    assert refuse_what_has_no_place(sql)[:1] == ([first] if first else [])


@pytest.mark.parametrize("sql", ["", " \t\n\r\f\v", ";", " ; ;", "-- x", "-- x\r;", "/* x */", "/* /* x */ */;--"])
def test_a_text_without_a_statement_is_empty(sql: str) -> None:
    assert is_empty(sql)


@pytest.mark.parametrize("sql", ["x", "(", "--\nx", "/* */x", ";;'", "/**/*/", "\ufeff", "\u00a0", "/* /* */ */ -"])
def test_a_text_with_anything_else_is_not(sql: str) -> None:
    assert not is_empty(sql)
