"""The interactive shell: statements that end with a semicolon, and commands that begin with a backslash.

Owns reading, and what a line means. Ctrl-C while a statement runs closes its connection, whereupon the service cancels
it. Where standard input is no terminal, statements are read from it and the first failure ends the run.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from plainsql.client import Client
from plainsql.command import EXIT_USAGE
from plainsql.command.arguments import FORMS
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
Statements end with a semicolon and may have several lines. Ctrl-C cancels what runs, Ctrl-D leaves.
  \\d            list tables and views          \\d NAME      columns, indexes and keys of one
  \\o FORM       table, json, csv or ndjson     \\timing      show how long statements take, or not
  \\i FILE       run the statements of a file   \\q           leave
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
    """One user's session: where it goes, and how it shows things."""

    def __init__(self, db: Client, *, interactive: bool, form: str = "table") -> None:
        self.db = db
        self.interactive = interactive
        self.form = form
        self.timing = True
        self.is_over = False
        self.completer: SchemaCompleter | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "\\d": self._describe, "\\o": self._choose_form, "\\timing": self._toggle_timing, "\\i": self._run_file,
            "\\q": self._leave, "\\?": self._help,
        }  # fmt: skip

    @property
    def commands(self) -> list[str]:
        return list(self._commands)

    def run(self, text: str) -> bool:
        """Does what a complete input says; False if something of it failed, which was shown."""
        if text.lstrip().startswith("\\"):
            name, _, argument = text.strip().rstrip(";").partition(" ")
            work = self._commands.get(name)
            if work is None:
                say(f"There is no command {name}; \\? lists them.")
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
        """A read was cancelled; of a write nobody knows yet whether Ctrl-C came in time."""
        doubt = "" if looks_like_a_read(sql) else " Unless it was done already: look before you repeat it."
        say(f"Cancelled.{doubt}")

    def _run_statement(self, sql: str) -> None:
        result = self.db.query_as_sent(sql)
        write = write_paged if self.interactive else write_result
        write(result, self.form)
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

    def _choose_form(self, form: str) -> None:
        if form not in FORMS:
            raise ValueError(f"The forms are {', '.join(FORMS)}.")
        self.form = form

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
    """The statements one after the other; the first error ends it, and is raised."""
    statements, rest = split_statements(sys.stdin.read())
    return 0 if all(shell.run(sql) for sql in [*statements, *([rest] if rest else [])]) else EXIT_USAGE


def is_complete(text: str) -> bool:
    """Whether Enter sends: nothing, a backslash command, or statements that are all ended."""
    text = text.strip()
    return not text or text.startswith("\\") or not split_statements(text)[1]


def _interact(shell: Shell) -> None:
    from plainsql.command.completion import SchemaCompleter  # noqa: PLC0415  # slow to import

    say("\\? for help, Ctrl-D to leave.")
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
