"""Completion in the shell: keywords, the database's tables and columns, and the shell's own commands.

The schema is loaded in the background when the shell starts and after each statement that may have changed it.
"""

import re
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from plainsql.client import Client
from plainsql.errors import Error

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples

_KEYWORDS = (
    "select", "from", "where", "group", "by", "order", "limit", "offset", "having", "distinct", "join", "left",
    "right", "inner", "outer", "on", "using", "as", "and", "or", "not", "in", "exists", "between", "like",
    "ilike", "is", "null", "insert", "into", "values", "update", "set", "delete", "returning", "create", "table",
    "index", "view", "drop", "alter", "add", "column", "primary", "key", "references", "default", "unique",
    "check", "with", "recursive", "union", "all", "except", "intersect", "case", "when", "then", "else", "end",
    "explain", "analyze", "begin", "truncate", "grant", "revoke", "cast", "count", "sum", "avg", "min", "max",
    "coalesce", "now", "true", "false", "asc", "desc",
)  # fmt: skip
_SCHEMA = """
select n.nspname::text as schema, c.relname::text as name, array_agg(a.attname::text order by a.attnum) as columns
from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
where c.relkind in ('r', 'p', 'v', 'm', 'f') and a.attnum > 0 and not a.attisdropped
and n.nspname not in ('pg_catalog', 'information_schema', 'plainsql') group by 1, 2 limit 5000
"""


class SchemaCompleter(Completer):
    """Completes the word before the cursor."""

    def __init__(self, db: Client, commands: Iterable[str]) -> None:
        self._db = db
        self._commands = sorted(commands)
        self._tables: dict[str, list[str]] = {}

    def use(self, db: Client) -> None:
        """Completes from another database."""
        self._db = db
        self._tables = {}
        self.refresh()

    def refresh(self) -> None:
        """Reloads the schema in the background."""
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        try:
            rows = self._db.query(_SCHEMA, max_rows=5000)
        except Error:
            # Completion is optional: keep the schema we have. The next statement will show what is wrong.
            return
        self._tables = {
            (row.name if row.schema == "public" else f"{row.schema}.{row.name}"): row["columns"] for row in rows
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        line = document.text_before_cursor.lstrip()
        if line.startswith("\\") and " " not in line:
            for name in self._commands:
                if name.startswith(line):
                    yield Completion(name, -len(line))
            return
        word = document.get_word_before_cursor(WORD=True).split("(")[-1].split(",")[-1]
        if not word:
            return
        for text, kind in self._offers(word, document.text):
            if text.lower().startswith(word.lower()) and text != word:
                shown: StyleAndTextTuples = [("", kind)]
                yield Completion(text, -len(word), display_meta=shown)

    def _offers(self, word: str, statement: str) -> Iterable[tuple[str, str]]:
        """Tables first, then the columns of the tables that the statement names, then keywords."""
        words = set(re.findall(r"[\w.]+", statement))
        named = [name for name in self._tables if name in words]
        if "." in word:
            table = word.rpartition(".")[0]
            yield from ((f"{table}.{column}", "column") for column in self._tables.get(table, ()))
        yield from ((name, "table") for name in self._tables)
        seen = {column: name for name in named or self._tables for column in self._tables[name]}
        yield from ((column, f"of {name}") for column, name in seen.items())
        upper = word.isupper()
        yield from ((each.upper() if upper else each, "") for each in _KEYWORDS)
