"""Classifies, before a statement runs, what session state it can leave behind.

A connection goes back to its pool only if its session is proven clean or has been cleaned. A statement is proven
harmless if all of this holds:

- it only reads or changes rows,
- every function that its text calls is known to touch no session state,
- the database is without code: it has no functions, triggers or views with calls that could run unseen.

After any other statement, the session is cleaned. The text is classified by patterns, not by a parser, and the patterns
err on the side of cleaning.
"""

import re
from collections.abc import Sequence
from enum import IntEnum


class SessionState(IntEnum):
    """How much cleanup a session needs after a statement. Larger values include smaller ones."""

    NOTHING = 0
    SEQUENCES = 1
    """A column default may have called nextval, so the next request could read the value with lastval()."""
    SESSION = 2
    """Code that the service cannot see may have changed settings, created temporary tables, and so on."""
    EVERYTHING = 3
    """The statement does more than read or change rows."""


_READS = frozenset(["SELECT", "VALUES", "TABLE"])
_CHANGES = frozenset(["INSERT", "UPDATE", "DELETE", "MERGE", "WITH"])

# Classification blocks the event loop and with it all other requests, so it is limited to texts that take a few
# milliseconds. Every pattern here must run in linear time, without backtracking.
_MAX_JUDGED_LENGTH = 64 * 1024

# A name, or the closing quote of a quoted name, before a parenthesis. _HIDES catches a comment between the two. A name
# may directly follow a number; then the match begins with the number.
_WORD = r"[\w$\u0080-\U0010ffff]"
_CALL = re.compile(rf"((?<!{_WORD}){_WORD}++|\")\s*+\(")
_NUMBER = "0123456789$"
# What can hide a call: comments, names with Unicode escapes, and built-in names that act without a parenthesis.
# x.nextval means nextval(x), ts_stat runs the query in its argument, and an UPDATE of pg_settings calls set_config.
# None of the other built-in functions with one parameter changes session state.
_HIDES = re.compile(r"--|/\*|u&[\"']|\b(?:pg_settings|ts_stat|setseed|currval)\b|\bnextval\b(?!\s*\()", re.IGNORECASE)
_INTO = re.compile(r"\binto\b", re.IGNORECASE)

# Names before a parenthesis that are not calls: the target of an INSERT, and in DDL the tables, access methods and
# columns that are named before a list. A pattern that is only safe in DDL is used only there. A quoted name must not
# contain a string's quotation mark: otherwise a match could begin in one string and end in the next.
_NAME = r'(?:"[^"\'$]+"|\w[\w$]*+)'
_QUALIFIED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_INSERT_TARGET = re.compile(rf"\s*insert\s+into\s+{_QUALIFIED}\s*(?=\()", re.IGNORECASE)
_DDL_TARGET = re.compile(
    rf"\b(?:table(?:\s+if\s+not\s+exists)?|references|on(?:\s+only)?|using)\s+{_QUALIFIED}\s*(?=\()", re.IGNORECASE
)

# Words that may precede a parenthesis without being a call: keywords, and types with a modifier.
_NOT_CALLS = """
    all always and any array as asc between bit bpchar by case cast cascade char character check conflict cube decimal
    default desc distinct else end enum except exists extract filter first float foreign from group grouping having
    ilike in include index insert intersect interval into is join key last lateral like limit materialized not
    nothing numeric nulls identity of offset on only or order over overlay partition position precision primary
    recursive references returning rollup row rows select set sets similar some start substring table then time
    timestamp trim union unique update using values varbit varchar varying when where window with within zone
"""
# Built-in functions that touch no session state: the commonly used ones, not all of them.
_PURE = """
    abs age array_agg array_append array_cat array_length array_position array_prepend array_remove array_replace
    array_to_json array_to_string ascii avg bit_and bit_length bit_or bool_and bool_or btrim cardinality cbrt ceil
    ceiling char_length character_length chr clock_timestamp coalesce concat concat_ws cos count cume_dist
    date_bin date_part date_trunc decode degrees dense_rank div encode every exp first_value floor format
    gen_random_uuid generate_series generate_subscripts greatest initcap int4range int8range isfinite json_agg
    json_array_elements json_array_elements_text json_array_length json_build_array json_build_object json_each
    json_each_text json_extract_path json_extract_path_text json_object json_object_agg json_object_keys
    json_strip_nulls json_to_record json_to_recordset json_typeof jsonb_agg jsonb_array_elements
    jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text
    jsonb_extract_path jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_agg jsonb_object_keys
    jsonb_path_exists jsonb_path_match jsonb_path_query jsonb_path_query_array jsonb_path_query_first
    jsonb_pretty jsonb_set jsonb_strip_nulls jsonb_to_record jsonb_to_recordset jsonb_typeof justify_days
    justify_hours justify_interval lag last_value lead least left length ln log lower lpad ltrim make_date
    make_interval make_time make_timestamp make_timestamptz max md5 min mod mode now nth_value ntile nullif
    num_nonnulls num_nulls numrange octet_length percent_rank percentile_cont percentile_disc phraseto_tsquery pi
    plainto_tsquery power quote_ident quote_literal quote_nullable radians random range_agg rank regexp_count
    regexp_like regexp_match regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table
    regexp_substr repeat replace reverse right round row_number row_to_json rpad rtrim sha224 sha256 sha384
    sha512 sign sin split_part sqrt starts_with statement_timestamp stddev string_agg string_to_array
    string_to_table strpos substr sum tan timeofday to_char to_date to_hex to_json to_jsonb to_number
    to_timestamp to_tsquery to_tsvector transaction_timestamp translate trim_array trunc ts_headline ts_rank
    tsrange tstzrange unnest upper var_pop var_samp variance websearch_to_tsquery width_bucket
"""
_HARMLESS = frozenset((_NOT_CALLS + _PURE).split())


def state_left_by(words: Sequence[str], sql: str, *, without_code: bool) -> SessionState:
    """Returns the cleanup that the session needs after this statement. `words` are the statement's first keywords.

    `without_code` says whether the database is without code.
    """
    first = words[0] if words else ""
    if first not in _READS and first not in _CHANGES:
        return SessionState.EVERYTHING
    # SELECT … INTO creates a table, perhaps a temporary one, and returns a SELECT command tag. Inside a WITH, the
    # pattern cannot tell it from INSERT INTO, because a column may be named `insert`.
    if (first in _READS or first == "WITH") and _INTO.search(sql):
        return SessionState.EVERYTHING
    if not without_code or not _calls_only_harmless(sql):
        return SessionState.SESSION
    return SessionState.NOTHING if first in _READS else SessionState.SEQUENCES


def may_store_code(words: Sequence[str], sql: str) -> bool:
    """Whether this statement could store code, so that the database is no longer without code."""
    first, second = [*words, "", ""][:2]
    if first not in _STORES:
        return False
    # nextval in a column default is fine: SessionState.SEQUENCES covers it.
    if (first, second) not in _STORES_EXPRESSIONS_ONLY or len(sql) > _MAX_JUDGED_LENGTH:
        return True
    return not _calls_only_harmless(_DDL_TARGET.sub("as", sql), _HARMLESS | {"nextval"})


# Commands that can store code to run later. Other commands can only run stored code, and a database without code has
# none.
_STORES = frozenset(["CREATE", "ALTER", "DO", "IMPORT"])
# The commands among them that store only the expressions in their text.
_STORES_EXPRESSIONS_ONLY = frozenset(
    [("CREATE", "TABLE"), ("CREATE", "UNLOGGED"), ("CREATE", "TEMP"), ("CREATE", "TEMPORARY"), ("CREATE", "INDEX"),
     ("CREATE", "UNIQUE"), ("CREATE", "SEQUENCE"), ("CREATE", "SCHEMA"), ("CREATE", "TYPE"), ("CREATE", "STATISTICS"),
     ("ALTER", "TABLE"), ("ALTER", "INDEX"), ("ALTER", "SEQUENCE"), ("ALTER", "SCHEMA")]
)  # fmt: skip


def _calls_only_harmless(sql: str, harmless: frozenset[str] = _HARMLESS) -> bool:
    if len(sql) > _MAX_JUDGED_LENGTH or _HIDES.search(sql):
        return False
    target = _INSERT_TARGET.match(sql)
    start = target.end() if target else 0
    names = (call[1].lstrip(_NUMBER).lower() for call in _CALL.finditer(sql, start))
    return all(not name or name in harmless for name in names)
