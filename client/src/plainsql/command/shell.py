"""The interactive shell: statements that end with a semicolon, and commands that start with a backslash.

Ctrl-C closes the connection of the running statement, and the service then cancels it. If standard input is not a
terminal, the shell reads statements from it and stops at the first error.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from plainsql.client import Client
from plainsql.command import EXIT_USAGE
from plainsql.command.arguments import OUTPUT_FORMATS
from plainsql.command.failures import show
from plainsql.command.paging import write_paged
from plainsql.command.sql import summary
from plainsql.command.statements import split_statements
from plainsql.command.tables import write_result
from plainsql.command.target import connect
from plainsql.command.terminal import say
from plainsql.errors import Error
from plainsql.settings import history_file
from plainsql.statements import looks_like_a_read

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from plainsql.command.completion import SchemaCompleter

_HELP = """\
End each statement with a semicolon; it may span several lines. Ctrl-C cancels it, Ctrl-D quits.
  \\d            list tables and views          \\d NAME      show a table's columns, indexes and keys
  \\o FORMAT     table, json, csv or ndjson     \\timing      turn timing on or off
  \\i FILE       run the statements in a file   \\q           quit
"""
_TABLES = """
select n.nspname as schema, c.relname as name,
  case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'f' then 'foreign table' else 'table' end
  as kind, case when c.reltuples >= 0 then c.reltuples::int8 end as row_estimate,
  pg_size_pretty(pg_total_relation_size(c.oid)) as size
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname not in ('pg_catalog', 'information_schema', 'plainsql')
order by 1, 2
"""
_COLUMNS = """
select a.attname as column, format_type(a.atttypid, a.atttypmod) as type, not a.attnotnull as nullable,
  pg_get_expr(d.adbin, d.adrelid) as default
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_INDEXES = """
select pg_get_indexdef(indexrelid) as "indexes and keys" from pg_index where indrelid = $1::regclass
union all select conname || ' ' || pg_get_constraintdef(oid) from pg_constraint
where conrelid = $1::regclass and contype in ('f', 'c')
"""


class Shell:
    """A shell session: its client and its output settings."""

    def __init__(self, db: Client, *, interactive: bool, output_format: str = "table") -> None:
        self.db = db
        self.interactive = interactive
        self.output_format = output_format
        self.timing = True
        self.is_over = False
        self.completer: SchemaCompleter | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "\\d": self._describe, "\\o": self._choose_format, "\\timing": self._toggle_timing, "\\i": self._run_file,
            "\\q": self._leave, "\\?": self._help,
        }  # fmt: skip

    @property
    def commands(self) -> list[str]:
        return list(self._commands)

    def run(self, text: str) -> bool:
        """Runs a complete input. Returns False if any part failed; the error has then been printed."""
        if text.lstrip().startswith("\\"):
            name, _, argument = text.strip().rstrip(";").partition(" ")
            work = self._commands.get(name)
            if work is None:
                say(f"Unknown command {name}. \\? lists the commands.")
                return False
            return self._guarded(work, argument.strip())
        statements, rest = split_statements(text)
        return all(self._guarded(self._run_statement, sql) for sql in [*statements, *([rest] if rest else [])])

    def _guarded(self, work: Callable[[str], None], argument: str) -> bool:
        try:
            work(argument)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            self._tell_of_interruption(argument)
            return False
        except (Error, OSError, ValueError) as error:
            if not self.interactive:
                raise
            show(error)
            return False
        return True

    def _tell_of_interruption(self, sql: str) -> None:
        """A write may have been committed before Ctrl-C took effect, so the message says to check."""
        doubt = "" if looks_like_a_read(sql) else " The write may already be committed: check before you repeat it."
        say(f"Cancelled.{doubt}")

    def _run_statement(self, sql: str) -> None:
        result = self.db.query_as_sent(sql)
        write = write_paged if self.interactive else write_result
        write(result, self.output_format)
        if self.timing:
            say(summary(result))
        if self.completer and not looks_like_a_read(sql):
            self.completer.refresh()

    def _describe(self, name: str) -> None:
        if not name:
            write_result(self.db.query_as_sent(_TABLES), "table")
            return
        write_result(self.db.query_as_sent(_COLUMNS, [name]), "table")
        indexes = self.db.query_as_sent(_INDEXES, [name])
        if indexes:
            print()
            write_result(indexes, "table")

    def _choose_format(self, output_format: str) -> None:
        if output_format not in OUTPUT_FORMATS:
            raise ValueError(f"Unknown format. Choose from {', '.join(OUTPUT_FORMATS)}.")
        self.output_format = output_format

    def _toggle_timing(self, _: str) -> None:
        self.timing = not self.timing
        say(f"Timing is {'on' if self.timing else 'off'}.")

    def _run_file(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.run(text)

    def _leave(self, _: str) -> None:
        self.is_over = True

    def _help(self, _: str) -> None:
        say(_HELP)


def run_shell(options: argparse.Namespace) -> int:
    with connect(options) as db:
        if not sys.stdin.isatty():
            return _run_input(Shell(db, interactive=False))
        _interact(Shell(db, interactive=True))
    return 0


def _run_input(shell: Shell) -> int:
    """Runs the statements one after the other. The first error is raised and ends the run."""
    statements, rest = split_statements(sys.stdin.read())
    return 0 if all(shell.run(sql) for sql in [*statements, *([rest] if rest else [])]) else EXIT_USAGE


def is_complete(text: str) -> bool:
    """Whether Enter runs the input: it is empty, a backslash command, or its statements all end with a semicolon."""
    text = text.strip()
    return not text or text.startswith("\\") or not split_statements(text)[1]


def _interact(shell: Shell) -> None:
    from plainsql.command.completion import SchemaCompleter  # noqa: PLC0415  # slow to import

    say("Type \\? for help, Ctrl-D to quit.")
    shell.completer = SchemaCompleter(shell.db, shell.commands)
    shell.completer.refresh()
    session = _session(shell)
    while not shell.is_over:
        try:
            text = session.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        shell.run(text)


def _session(shell: Shell) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession  # noqa: PLC0415  # slow to import
    from prompt_toolkit.filters import Condition  # noqa: PLC0415
    from prompt_toolkit.history import FileHistory  # noqa: PLC0415
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent  # noqa: PLC0415

    keys = KeyBindings()
    name = shell.db.settings.database or "plainsql"

    @keys.add("enter", filter=Condition(lambda: not _is_choosing()))
    def _(event: KeyPressEvent) -> None:
        if is_complete(event.current_buffer.text):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    def _is_choosing() -> bool:
        state = session.default_buffer.complete_state
        return state is not None and state.current_completion is not None

    path = history_file()
    os.makedirs(os.path.dirname(path), exist_ok=True, mode=0o700)
    session: PromptSession[str] = PromptSession(
        message=f"{name}> ",
        prompt_continuation=lambda width, _line, _wrapped: " " * (width - 3) + "-> ",
        history=FileHistory(path),
        completer=shell.completer,
        complete_while_typing=True,
        multiline=True,
        key_bindings=keys,
        enable_history_search=False,
    )
    return session
