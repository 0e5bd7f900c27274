import pytest

from plainsql_server.core.sql_text import without_stream_hint

pytestmark = pytest.mark.unit

HINT = "/*+ STREAM */"


@pytest.mark.parametrize(
    "before",
    [
        "",
        " \n\t",
        "-- a note\n",
        "/* a note */ ",
        "/* one /* in the other */ */",
        "-- a\r\n /* b */\f",
        "/*+ other */",
        ";",
    ],
)
def test_the_hint_is_found_before_the_first_word_and_leaves_blanks(before: str) -> None:
    sql = f"{before}{HINT} select 1"
    assert without_stream_hint(sql) == f"{before}{' ' * len(HINT)} select 1"


@pytest.mark.parametrize("hint", ["/*+STREAM*/", "/*+ stream */", "/*+\n Stream\t*/"])
def test_the_hint_may_be_written_in_several_ways(hint: str) -> None:
    assert without_stream_hint(f"{hint}select 1") == " " * len(hint) + "select 1"


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "select 1",
        f"select 1 {HINT}",
        f"select {HINT} 1",
        f"-- {HINT}\nselect 1",
        f"/* {HINT} */ select 1",
        "/* STREAM */ select 1",
        "/*+ STREAMS */ select 1",
        "/*+ STREAM",
        f"'{HINT}'",
        f"/* never closed {HINT} select 1",
    ],
)
def test_comments_that_resemble_the_hint_are_ignored(sql: str) -> None:
    assert without_stream_hint(sql) is None
