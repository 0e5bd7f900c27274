"""Looks at SQL text: is the result ordered, does a statement lock rows, change the schema, or read only the catalogue?

This is not a parser. Every function errs on the safe side: what it does not recognize is verified, or rehearsed.
"""

import re
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import NamedTuple

from plainsql.statements import first_word, looks_like_a_read


def _words(table: str) -> frozenset[str]:
    return frozenset(table.split())


_TOKEN = re.compile(
    r"""
    (?P<skip>\s+ | --[^\n]* | /\*.*?\*/)
    | (?P<string>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>[A-Za-z_]*)\$.*?\$(?P=tag)\$)
    | (?P<name>"(?:[^"]|"")*" | [^\W\d][\w$]*)
    | (?P<operator>(?:(?!--|/\*)[-+*/<>=~!@\#%^&|`?])+)
    | (?P<other>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_SHORT = 4096
_LOCKS = re.compile(r"\bFOR (?:NO KEY )?(?:UPDATE|(?:KEY )?SHARE)\b")
_WRITING_WORDS = frozenset(["INSERT", "UPDATE", "DELETE", "MERGE"])
# They have no result to wait for, and running them twice is expensive, so they run first with the next statement.
_SCHEMA_WORDS = frozenset(
    "ALTER ANALYZE COMMENT CREATE DROP GRANT LOCK REFRESH REINDEX RESET REVOKE SECURITY SET TRUNCATE".split()  # noqa: SIM905
)
_SAVEPOINT = re.compile(
    r"""(?is)\s* (?: (?P<set>SAVEPOINT) | (?P<release>RELEASE)(?:\s+SAVEPOINT)?
    | (?P<back>ROLLBACK)(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)? )
    (?: \s+(?P<plain>[^\W\d][\w$]*) | \s*"(?P<quoted>(?:[^"]|"")+)" ) \s*;?\s*$""",
    re.VERBOSE,
)
_NEXT_NUMBER = re.compile(r"\s*select\s+(?:nextval|setval)\s*\([^()]*\)\s*", re.IGNORECASE)

_CATALOGUES = frozenset(["pg_catalog", "information_schema"])
# PostgreSQL finds these in pg_catalog, whatever the search path.
_CATALOGUE_TABLES = _words("""
    pg_attrdef pg_attribute pg_class pg_collation pg_constraint pg_database pg_description pg_enum pg_extension
    pg_index pg_indexes pg_inherits pg_matviews pg_namespace pg_opclass pg_proc pg_roles pg_sequence pg_settings
    pg_tables pg_trigger pg_type pg_views
""")
# Functions and constructs that read no table of yours.
_HARMLESS_CALLS = _words("""
    all and any array array_agg array_length array_position array_remove array_to_string as bool_and bool_or by case
    cast ceil char clock_timestamp coalesce col_description count current_database current_schema current_schemas
    current_setting distinct else exists filter floor format format_type from gen_random_uuid generate_series
    generate_subscripts greatest has_database_privilege has_schema_privilege has_table_privilege in is join json_agg
    json_build_object json_object_agg jsonb_agg jsonb_build_object lateral least length lower max min not now nullif
    numeric obj_description on or over pg_backend_pid pg_encoding_to_char pg_get_constraintdef pg_get_expr
    pg_get_function_arguments pg_get_function_identity_arguments pg_get_function_result pg_get_functiondef
    pg_get_indexdef pg_get_partkeydef pg_get_ruledef pg_get_serial_sequence pg_get_triggerdef pg_get_userbyid
    pg_get_viewdef pg_index_column_has_property pg_function_is_visible pg_table_is_visible pg_type_is_visible
    quote_ident quote_literal random regexp_replace replace round row row_number select session_user set split_part
    statement_timestamp string_agg substr substring sum then to_regclass to_regtype transaction_timestamp union unnest
    upper using values varchar version when where with
""")
_OID_WORDS = _words("""
    information_schema oid tableoid regclass regproc regprocedure regoper regoperator regtype regrole regnamespace
    regconfig regdictionary regcollation
""")
# Other operators may be yours, or an extension's, and call any function.
_KNOWN_OPERATORS = _words("""
    = <> != < > <= >= + - * / % ^ || & | # << >> ~ ~* !~ !~* ~~ ~~* !~~ !~~* -> ->> #> #>> @> <@ && @@ ? ?| ?&
""")
_ARITHMETIC = _words("= < > <= >= <> + * /")
# They need no parentheses, and yet are not columns.
_VALUE_WORDS = _words("""
    current_catalog current_date current_role current_schema current_time current_timestamp current_user false localtime
    localtimestamp null session_user system_user true user
""")
_COLUMNS = re.compile(r"COL(?:,COL)*;?".replace("COL", r"(?:(?:n\.)*n(?:an)?|(?:n\.)*\*)"))
# They change the settings of the transaction, which later statements read.
_SETTING_CALLS = frozenset(["set_config", "setseed"])
_RELATION_ENDS = frozenset(
    "WHERE GROUP HAVING ORDER LIMIT OFFSET FETCH FOR WINDOW UNION INTERSECT EXCEPT SELECT".split()  # noqa: SIM905
)


def _remembered(classify: Callable[[str], bool]) -> Callable[[str], bool]:
    """Caches the answers for short statements. Long ones, such as inserts of many rows, seldom come twice."""
    cached = lru_cache(maxsize=512)(classify)
    return wraps(classify)(lambda sql: cached(sql) if len(sql) < _SHORT else classify(sql))


class SavepointStatement(NamedTuple):
    """SAVEPOINT, RELEASE or ROLLBACK TO, with the savepoint's name."""

    verb: str
    name: str


def savepoint_in(sql: str) -> SavepointStatement | None:
    """The savepoint statement that this is, or None."""
    match = _SAVEPOINT.match(sql)
    if match is None:
        return None
    verb = "SAVEPOINT" if match["set"] else "RELEASE" if match["release"] else "ROLLBACK"
    return SavepointStatement(verb, match["plain"].lower() if match["plain"] else match["quoted"].replace('""', '"'))


def draws_number(sql: str) -> bool:
    """Whether it only calls a sequence's function, which no rollback undoes."""
    return _NEXT_NUMBER.fullmatch(sql) is not None


def changes_schema(sql: str) -> bool:
    """Whether it changes the schema or the session, and so has neither rows nor a row count."""
    return first_word(sql) in _SCHEMA_WORDS


@_remembered
def is_select(sql: str) -> bool:
    """Whether it is a statement that only reads, as far as its words say, and perhaps locks rows."""
    if first_word(sql) not in ("WITH", "EXPLAIN"):
        return looks_like_a_read(sql)
    return not any(kind == "name" and text.upper() in _WRITING_WORDS for kind, text in _tokens(sql))


@_remembered
def is_read(sql: str) -> bool:
    """Whether to run it read-only first. A statement that locks rows or writes in a WITH part is a write.

    So is one that changes a setting: later statements of the transaction must see it.
    """
    if not is_select(sql):
        return False
    names = [text for kind, text in _tokens(sql) if kind == "name"]
    if any(name.strip('"').lower() in _SETTING_CALLS for name in names):
        return False
    return _LOCKS.search(" ".join(names).upper()) is None


@_remembered
def calls_only_known(sql: str) -> bool:
    """Whether it calls nothing but functions that are known to read and to change no table."""
    return _calls_are_harmless(_tokens(sql))


@_remembered
def has_returning(sql: str) -> bool:
    """Whether a write may return rows."""
    if "RETURNING" not in sql.upper():
        return False
    return any(kind == "name" and text.upper() == "RETURNING" for kind, text in _tokens(sql))


@_remembered
def returns_columns(sql: str) -> bool:
    """Whether an INSERT returns a list of plain columns, or nothing."""
    tokens = _tokens(sql)
    texts = [text.upper() for _, text in tokens]
    if "RETURNING" not in texts:
        return True
    # Each token as one letter: a name, AS, or the sign itself.
    shape = ""
    for kind, text in tokens[texts.index("RETURNING") + 1 :]:
        if kind == "name" and text.lower() in _VALUE_WORDS:
            return False
        shape += "a" if text.upper() == "AS" else "n" if kind == "name" else text or "'"
    return _COLUMNS.fullmatch(shape) is not None


@_remembered
def is_ordered(sql: str) -> bool:
    """Whether the result has an order of its own: an ORDER BY outside all parentheses."""
    depth, last = 0, ""
    for kind, text in _tokens(sql):
        depth += {"(": 1, ")": -1}.get(text, 0) if kind == "other" else 0
        if depth == 0 and kind == "name" and last == "ORDER" and text.upper() == "BY":
            return True
        last = text.upper() if depth == 0 and kind == "name" else ""
    return False


@_remembered
def reads_no_table(sql: str) -> bool:
    """Whether a read depends on no table of yours: it reads the catalogue alone, or nothing.

    Such a read is not verified. PostgreSQL itself does not track reads of the catalogue for serializability, and the
    OIDs of objects made in the same transaction differ in each rehearsal.
    """
    word = first_word(sql)
    if word not in ("SELECT", "WITH", "VALUES"):
        return word == "SHOW"
    tokens = _tokens(sql)
    return _calls_are_harmless(tokens) and _relations_are_catalogues(tokens)


@_remembered
def mentions_oids(sql: str) -> bool:
    """Whether it may have to do with OIDs: it names the catalogue, the type, or one of the types of names."""
    names = {text.strip('"').lower() for kind, text in _tokens(sql) if kind == "name"}
    return any(name in _OID_WORDS or name.startswith(("pg_", "to_reg")) for name in names)


def _tokens(sql: str) -> list[tuple[str, str]]:
    """The tokens without space and comments. Strings are reduced to their kind."""
    return [
        (kind, "" if kind == "string" else match[0])
        for match in _TOKEN.finditer(sql)
        if (kind := "string" if match["string"] is not None else match.lastgroup or "other") != "skip"
    ]


def _calls_are_harmless(tokens: list[tuple[str, str]]) -> bool:
    """Whether all calls and operators are known."""
    if any(kind == "operator" and not _is_known_operator(text) for kind, text in tokens):
        return False
    for index, (kind, text) in enumerate(tokens[:-1]):
        if kind != "name" or tokens[index + 1][1] != "(":
            continue
        if text.lower() not in _HARMLESS_CALLS:
            return False
        if index >= 2 and tokens[index - 1][1] == "." and tokens[index - 2][1].lower() != "pg_catalog":
            return False
    return True


def _is_known_operator(text: str) -> bool:
    # In `a =-1`, PostgreSQL takes the sign for another operator. It does not in `a ~-1`.
    return text in _KNOWN_OPERATORS or (text.rstrip("+-") or "+") in _ARITHMETIC


def _relations_are_catalogues(tokens: list[tuple[str, str]]) -> bool:
    named = _parts_of_with(tokens)
    # One entry per open parenthesis: whether the position is in a list of relations.
    in_list = [False]
    expects_relation = False
    for index, (kind, text) in enumerate(tokens):
        word = text.upper()
        if expects_relation and word not in ("LATERAL", "ONLY"):
            expects_relation = False
            if text != "(" and not _is_catalogue(tokens, index, named):
                return False
            if text == "(":
                # Either a subquery or a list of relations.
                in_list.append(True)
                expects_relation = index + 1 < len(tokens) and tokens[index + 1][1].upper() not in _QUERY_STARTS
                continue
        if kind == "other" and text in "()":
            if text == "(":
                in_list.append(False)
            elif len(in_list) > 1:
                in_list.pop()
        elif kind == "name" and word in ("FROM", "JOIN", "TABLE", "INTO"):
            in_list[-1] = expects_relation = True
        elif kind == "name" and word in _RELATION_ENDS:
            in_list[-1] = False
        elif text == "," and in_list[-1]:
            expects_relation = True
    return True


_QUERY_STARTS = ("SELECT", "VALUES", "WITH")


def _is_catalogue(tokens: list[tuple[str, str]], index: int, named: dict[str, int]) -> bool:
    """Whether the relation here is the catalogue's, a WITH part's, or a function, which is looked at elsewhere."""
    name = tokens[index][1].strip('"').lower()
    after = tokens[index + 1][1] if index + 1 < len(tokens) else ""
    if after == ".":
        return name in _CATALOGUES
    return after == "(" or name in _CATALOGUE_TABLES or named.get(name, index) < index


def _parts_of_with(tokens: list[tuple[str, str]]) -> dict[str, int]:
    """The parts of the WITH clause that begins the statement: each name, and where its parentheses close.

    Before that, the name is a table's, if there is one. A part of another WITH clause is not seen, and so not
    recognized.
    """
    found: dict[str, int] = {}
    if not tokens or tokens[0][1].upper() != "WITH":
        return found
    depth, name = 0, ""
    for index, (kind, text) in enumerate(tokens):
        if depth == 0 and text.upper() in _QUERY_STARTS and index > 0:
            break
        if kind == "name" and depth == 0 and [each[1].upper() for each in tokens[index + 1 : index + 3]] == ["AS", "("]:
            name = text.strip('"').lower()
        depth += {"(": 1, ")": -1}.get(text, 0) if kind == "other" else 0
        if text == ")" and depth == 0 and name:
            found[name], name = index, ""
    return found
