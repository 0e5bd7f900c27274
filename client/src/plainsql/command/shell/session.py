"""The interactive shell: statements that end with a semicolon, and commands that start with a backslash.

Ctrl-C closes the connection of the running statement, and the service then cancels it. If standard input is not a
terminal, the shell reads statements from it and stops at the first error. `prompting.py` has the prompt.
"""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from plainsql.client import Client
from plainsql.command import EXIT_USAGE
from plainsql.command.arguments import OUTPUT_FORMATS
from plainsql.command.failures import show, show_notices
from plainsql.command.nouns import write_records
from plainsql.command.shell.paging import write_paged
from plainsql.command.shell.queries import COLUMNS, INDEXES, RELATION_KINDS, TABLE_KINDS, TABLES
from plainsql.command.shell.transactions import ShellTransaction
from plainsql.command.sql import summary
from plainsql.command.statements import all_statements, split_statements
from plainsql.command.tables import write_result
from plainsql.command.target import client_of, connect
from plainsql.command.terminal import say
from plainsql.errors import Error
from plainsql.statements import looks_like_a_read

if TYPE_CHECKING:
    from plainsql.command.shell.completion import SchemaCompleter

_HELP = """\
End each statement with a semicolon; it may span several lines. Ctrl-C cancels it, Ctrl-D quits.
Statements between BEGIN; and COMMIT; are one transaction; ROLLBACK; discards it.
  \\l            list databases                 \\c NAME      use another database
  \\dt           list tables                    \\d           list tables and views
  \\d NAME       show a table's columns, indexes and keys
  \\x            one line per column, on or off \\o FORMAT    table, json, csv or ndjson
  \\e            edit the last statement in your editor ($VISUAL or $EDITOR)
  \\i FILE       run the statements in a file   \\timing      turn timing on or off
  \\copy TABLE from 'FILE'                      load CSV, NDJSON or Parquet into a table
  \\copy TABLE to 'FILE', \\copy (QUERY) to 'FILE'
  \\?, help      show this help                 \\q, exit     quit
"""
# Without a backslash, as in psql.
_BARE = {"help": "\\?", "exit": "\\q", "quit": "\\q"}


class Shell:
    """A shell session: its client, its transaction and its output settings."""

    def __init__(self, db: Client, options: argparse.Namespace, *, interactive: bool) -> None:
        self.db = db
        self.interactive = interactive
        self.output_format = "table"
        self.is_expanded = False
        self.timing = True
        self.is_over = False
        self.completer: SchemaCompleter | None = None
        # The statement that \e edits, and whether to open the editor.
        self.last_text = ""
        self.opens_editor = False
        self._options = options
        self._transaction = ShellTransaction(is_interactive=interactive)
        self._commands: dict[str, Callable[[str], None]] = {
            "\\l": self._list_databases, "\\c": self._change_database, "\\dt": self._list_tables,
            "\\d": self._describe, "\\x": self._toggle_expanded, "\\copy": self._copy, "\\e": self._edit,
            "\\o": self._choose_format, "\\timing": self._toggle_timing, "\\i": self._run_file,
            "\\q": self._leave, "\\?": self._help,
        }  # fmt: skip

    @property
    def commands(self) -> list[str]:
        return list(self._commands)

    @property
    def prompt(self) -> str:
        return f"{self.db.settings.database or 'plainsql'}{self._transaction.mark}> "

    def run(self, text: str) -> bool:
        """Runs a complete input. Returns False if any part failed; the error has then been printed."""
        return all(self._run_one(each) for each in all_statements(text) if not self.is_over)

    def _run_one(self, text: str) -> bool:
        """Runs a statement or a command."""
        name, _, argument = text.rstrip("; ").partition(" ")
        name = name if argument else _BARE.get(name.lower(), name)
        if not name.startswith("\\"):
            self.last_text = f"{text};"
            return self._guarded(self._run_statement, text)
        work = self._commands.get(name)
        if work is None:
            say(f"Unknown command {name}. \\? lists the commands.")
            return False
        return self._guarded(work, argument.strip())

    def finish(self) -> bool:
        """Whether no transaction is left open. Says so if the last one was not committed."""
        if self._transaction.is_open:
            say("The transaction was not committed: there is no COMMIT.")
        return not self._transaction.is_open

    def _guarded(self, work: Callable[[str], None], argument: str) -> bool:
        try:
            work(argument)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            self._tell_of_interruption(argument)
            return False
        except (Error, OSError, ValueError, ImportError) as error:
            if not self.interactive:
                raise
            show(error)
            return False
        return True

    def _tell_of_interruption(self, sql: str) -> None:
        """A write may have been committed before Ctrl-C took effect, so the message says to check."""
        is_safe = looks_like_a_read(sql) or self._transaction.is_open
        say("Cancelled." if is_safe else "Cancelled. The write may already be committed: check before you repeat it.")

    def _run_statement(self, sql: str) -> None:
        write = write_paged if self.interactive else write_result
        shown = "expanded" if self.is_expanded and self.output_format == "table" else self.output_format
        for result in self._transaction.run(self.db, sql):
            show_notices(result.notices)
            write(result, shown)
            say(summary(result, with_time=self.timing), "dim")
        if self.completer and not looks_like_a_read(sql) and not self._transaction.is_open:
            self.completer.refresh()

    def _list_databases(self, _: str) -> None:
        columns = ("name", "state", "default", "size_bytes", "created_at")
        write_records(columns, list(self.db.list_databases()), "table")

    def _change_database(self, name: str) -> None:
        if not name:
            say(f"You use {self.db.settings.database or 'the default database'}.")
            return
        if self._transaction.is_open:
            raise ValueError("A transaction is open. COMMIT or ROLLBACK it first.")
        changed = client_of(self.db.settings._replace(database=name), self._options)
        try:
            changed.query("select 1")
        except BaseException:
            changed.close()
            raise
        self.db.close()
        self.db = changed
        if self.completer:
            self.completer.use(changed)
        say(f"You now use database {name}.")

    def _list_tables(self, pattern: str) -> None:
        write_result(self.db.query_as_sent(TABLES, [TABLE_KINDS, pattern]), "table")

    def _describe(self, name: str) -> None:
        if not name:
            write_result(self.db.query_as_sent(TABLES, [RELATION_KINDS, ""]), "table")
            return
        write_result(self.db.query_as_sent(COLUMNS, [name]), "table")
        indexes = self.db.query_as_sent(INDEXES, [name])
        if indexes:
            print()
            write_result(indexes, "table")

    def _toggle_expanded(self, _: str) -> None:
        self.is_expanded = not self.is_expanded
        say(f"Expanded display is {'on' if self.is_expanded else 'off'}.")

    def _copy(self, argument: str) -> None:
        from plainsql.command.shell.copying import copy  # noqa: PLC0415  # slow to import

        if self._transaction.is_open:
            raise ValueError("\\copy can't be part of a transaction. COMMIT or ROLLBACK it first.")
        copy(self.db, argument)

    def _edit(self, _: str) -> None:
        if not self.interactive:
            raise ValueError("\\e needs a terminal.")
        self.opens_editor = True

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
    shell = Shell(connect(options), options, interactive=sys.stdin.isatty())
    try:
        if not shell.interactive:
            return _run_input(shell)
        from plainsql.command.shell.prompting import interact  # noqa: PLC0415  # slow to import

        interact(shell)
    finally:
        shell.db.close()
    return 0


def _run_input(shell: Shell) -> int:
    """Runs the statements and commands one after the other. The first error is raised and ends the run."""
    is_done = shell.run(sys.stdin.read())
    is_done &= shell.finish()
    return 0 if is_done else EXIT_USAGE


def is_complete(text: str) -> bool:
    """Whether Enter runs the input: it is empty, a command, or its statements all end with a semicolon."""
    return not split_statements(text)[1]
