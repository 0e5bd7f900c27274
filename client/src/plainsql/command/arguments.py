"""The arguments of `plainsql`: its subcommands, their options and their help texts.

To start fast, it builds a parser only for the subcommand in use and imports that subcommand's code only when it runs.
The settings, such as `--url`, are accepted before or after the subcommand.
"""

import argparse
import os
from collections.abc import Callable
from importlib import import_module

from plainsql import VERSION

OUTPUT_FORMATS = ("table", "json", "csv", "ndjson")
FILE_FORMATS = ("csv", "ndjson", "parquet")
SCOPES = ("read", "write", "admin")
# The service's limits.
_SESSION_SHORTEST_S = 60
_SESSION_LONGEST_S = 86_400
_DESCRIPTION = "SQL over plain HTTPS. Without a subcommand, starts the interactive shell."
_EPILOG = """\
settings are read from, in this order:
  1. command-line options
  2. PLAINSQL_URL, PLAINSQL_KEY, PLAINSQL_DATABASE, PLAINSQL_CA_FILE,
     PLAINSQL_CONTROL_URL, PLAINSQL_INSECURE
  3. .plainsql/dev.json, written by `plainsql-server dev`, in this folder or
     the nearest one above it
  4. what `plainsql login` saved

exit codes:
  0 success                        1 the service returned an error
  2 invalid usage or settings      3 credential rejected, or lacks the scope
  4 service or network unavailable 5 rate limit reached
  130 interrupted
"""
_SETTINGS_ARE_ELSEWHERE = "The settings, such as --url, are accepted here, too. See plainsql --help."
_EXAMPLES = {
    "plainsql": """\
  plainsql sql "select 1 + 1 as two"
  plainsql import notes.csv --table notes --create
  plainsql                                    (the shell; \\? shows its commands)""",
    "plainsql sql": """\
  plainsql sql 'select * from notes where id = $1' -p 7
  plainsql sql -o csv "select * from notes" > notes.csv
  plainsql sql -f schema.sql
  plainsql sql -f close_day.sql -p 2026-03-10
  echo "select 1; select 2" | plainsql sql""",
    "plainsql import": """\
  plainsql import notes.csv --table notes --create
  plainsql import notes.csv --table notes --create --primary-key id \\
    --on-conflict update
  zcat notes.csv.gz | plainsql import - --format csv --table notes""",
    "plainsql export": """\
  plainsql export notes.parquet --table notes
  plainsql export - --format ndjson --sql "select * from notes" """,
    "plainsql keys create": """\
  plainsql keys create reports --scope read --bound-to main
  plainsql keys create deployment --scope write --scope admin""",
    "plainsql session": """\
  plainsql session --scope read --bound-to main""",
    "plainsql mcp": """\
  plainsql mcp --database main
  plainsql mcp --allow-writes""",
    "plainsql login": """\
  plainsql login https://db.example.com:8400
  plainsql login https://db.example.com:8400 < key.txt""",
}


class Command:
    """A subcommand: its help text, its function (as `module:function`), its arguments and its own subcommands."""

    def __init__(
        self,
        text: str,
        work: str,
        add: Callable[[argparse.ArgumentParser], object] | None = None,
        verbs: "dict[str, Command] | None" = None,
    ) -> None:
        self.text = text
        self.work = work
        self.add = add
        self.verbs = verbs or {}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the parsed options; `options.run` is the function that runs the subcommand."""
    command = Command(_DESCRIPTION, "shell.session:run_shell", _add_settings, _COMMANDS)
    options, name = argparse.Namespace(), "plainsql"
    while True:
        parser = _parser(name, command)
        parser.parse_args(arguments, options)
        if not getattr(options, "verb", None):
            break
        verb, *arguments = options.verb
        if verb == "help":
            parser.print_help()
            parser.exit()
        if verb not in command.verbs:
            parser.error(f"unknown subcommand {verb!r}{_advice(verb, command)}")
        options.verb = None
        name, command = f"{name} {verb}", command.verbs[verb]
    if options.version:
        parser.exit(0, f"plainsql {VERSION}\n")
    options.run = _work(command.work)
    return options


def _advice(verb: str, command: Command) -> str:
    """What to type instead."""
    import shlex  # noqa: PLC0415  # slow to import, and seldom needed
    from difflib import get_close_matches  # noqa: PLC0415  # the same

    if " " in verb and command.verbs is _COMMANDS:
        return f"; to run SQL, type plainsql sql {shlex.quote(verb)}"
    near = get_close_matches(verb, command.verbs, 1)
    return f"; did you mean {near[0]}?" if near else f"; choose from {', '.join(command.verbs)}"


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows that the subcommand may be left out."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        shown = super()._format_args(action, default_metavar)
        return f"[{shown}]" if action.nargs == argparse.PARSER else shown


def _work(place: str) -> Callable[[argparse.Namespace], int]:
    module, _, name = place.partition(":")

    def run(options: argparse.Namespace) -> int:
        work: Callable[[argparse.Namespace], int] = getattr(import_module(f"plainsql.command.{module}"), name)
        return work(options)

    return run


def _parser(name: str, command: Command) -> argparse.ArgumentParser:
    is_first = command.verbs is _COMMANDS
    more = "\n".join(_verb_lines(command) + _example_lines(name))
    parser = argparse.ArgumentParser(
        prog=name,
        description=_sentence(command.text),
        epilog=more + (_EPILOG if is_first else _SETTINGS_ARE_ELSEWHERE),
        formatter_class=lambda prog: _HelpFormatter(prog, width=_columns()),
    )
    if not is_first:
        _add_settings(parser, is_first=False)
    if command.add is not None:
        command.add(parser)
    if command.verbs:
        verb = parser.add_argument("verb", nargs=argparse.PARSER, metavar="SUBCOMMAND", help="see the list below")
        verb.required = False
    return parser


def _verb_lines(command: Command) -> list[str]:
    if not command.verbs:
        return []
    return ["subcommands:", *(f"    {name:<12}{verb.text}" for name, verb in command.verbs.items()), "", ""]


def _example_lines(name: str) -> list[str]:
    return ["examples:", _EXAMPLES[name].rstrip(), "", ""] if name in _EXAMPLES else []


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text[0].upper()}{text[1:]}."


def _columns() -> int:
    """The terminal's width. Avoids `shutil`, which is slow to import."""
    try:
        return os.get_terminal_size().columns - 2
    except OSError:
        return 78


def _add_settings(parser: argparse.ArgumentParser, *, is_first: bool = True) -> None:
    """Adds the settings. After a subcommand they are accepted, but the help omits them."""

    def add(*names: str, text: str, default: object = None, **more: object) -> None:
        shown = text if is_first else argparse.SUPPRESS
        default = default if is_first else argparse.SUPPRESS
        parser.add_argument(*names, help=shown, default=default, **more)  # type: ignore[arg-type]  # as argparse's

    add("--url", text="URL of the service, https://host:port")
    add("--key", text="API key or session token; PLAINSQL_KEY is safer, because other users can see options")
    add("-d", "--database", metavar="NAME", text="database, by name or id (default: the organization's default)")
    add("--ca-file", metavar="FILE", text="file with the CA certificates to trust instead of the system's")
    text = "allow http:// to another machine; the key is sent in clear text"
    add("--insecure", action="store_true", default=False, text=text)
    text = "limit for each request (default: 60; for streamed results, the tier's limit)"
    add("--timeout", type=float, metavar="SECONDS", text=text)
    text = "how long to wait if a rate limit is reached (default: as long as the call may take; 0: fail at once)"
    add("--rate-limit-wait", type=float, metavar="SECONDS", text=text)
    if is_first:
        add("--version", action="store_true", default=False, text="show the version and exit")


def _add_format(parser: argparse.ArgumentParser) -> None:
    shown = "output format (default: table)"
    parser.add_argument("-o", "--output", dest="output_format", choices=OUTPUT_FORMATS, default="table", help=shown)


def _add_sql(parser: argparse.ArgumentParser) -> None:
    shown = "one or more statements, separated by semicolons (default: standard input)"
    parser.add_argument("statements", nargs="*", metavar="SQL", help=shown)
    shown = "read the statements from a file (- for standard input)"
    parser.add_argument("-f", "--file", help=shown)
    shown = "commit each statement by itself, and stop at the first that fails"
    parser.add_argument("--no-transaction", action="store_true", help=shown)
    shown = "value of $1; repeat for $2, $3, …; several statements share the values"
    parser.add_argument("-p", "--param", action="append", default=[], metavar="VALUE", help=shown)
    parser.add_argument("--max-rows", type=int, metavar="ROWS", help="return at most this many rows")
    parser.add_argument("--read-only", action="store_true", default=None, help="run read-only; writes fail")
    shown = "a name for this write: if you repeat the command with it, the write doesn't run again"
    parser.add_argument("--idempotency-key", metavar="KEY", help=shown)
    _add_format(parser)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="CSV, NDJSON or Parquet; - for standard input")
    parser.add_argument("--table", required=True, help="the table, with its schema if needed: archive.notes")
    shown = "create the table if it doesn't exist, with a Parquet file's types, or types that fit the first rows"
    parser.add_argument("--create", action="store_true", help=shown)
    shown = "the primary key of a table that --create creates: a column, or several, separated by commas"
    parser.add_argument("--primary-key", metavar="NAMES", help=shown)
    shown = "with --create, make the names of the columns lower case; in SQL, capitals need quotation marks"
    parser.add_argument("--lower-case", action="store_true", help=shown)
    shown = "if a row exists already: skip the new one, or update it by its primary key (default: fail)"
    parser.add_argument("--on-conflict", choices=("nothing", "update"), help=shown)
    parser.add_argument("--format", choices=FILE_FORMATS, help="file format (default: from the file's name)")
    parser.add_argument("--columns", metavar="NAMES", help="comma-separated column names, for a CSV without a header")
    parser.add_argument(
        "--delimiter", metavar="CHAR", help="CSV delimiter, such as ';' (default: a comma; a tab for .tsv)"
    )


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="CSV, NDJSON or Parquet; - for standard output")
    parser.add_argument("--table", help="the table to export")
    parser.add_argument("--sql", help="the query to export; give either --table or --sql")
    parser.add_argument("--format", choices=FILE_FORMATS, help="file format (default: from the file's name)")


def _add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", help="list only this schema's tables")
    _add_format(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="name or id")


def _add_branch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parent", help="the database to copy")
    parser.add_argument("name", help="the name to give the copy")
    shown = "when the copy is deleted for good, such as 2027-01-31T00:00:00Z (default: never)"
    parser.add_argument("--expires-at", metavar="TIME", help=shown)
    shown = "copy it as it was then, such as 2027-01-31T12:30:00Z; waits, and shows the progress (default: as it is)"
    parser.add_argument("--at", metavar="TIME", help=shown)


def _add_restore(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    shown = (
        "restore what the database was then, such as 2027-01-31T12:30:00Z; waits, and shows the progress. What it is "
        "now becomes a deleted database (default: restore a deleted database)"
    )
    parser.add_argument("--at", metavar="TIME", help=shown)
    _add_yes(parser)


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the branch")
    parser.add_argument("--with", dest="other", metavar="DATABASE", help="compare with this one (default: its parent)")
    _add_format(parser)


def _add_rename(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument("new_name", help="the new name")


def _add_delete(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument("--for-good", action="store_true", help="delete permanently: it can't be restored")
    _add_yes(parser)


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="don't ask for confirmation; required without a terminal")


def _add_reset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the name of the database")
    _add_yes(parser)


def _add_usage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="start", metavar="DAY", help="first day, such as 2026-11-01 (default: 30 days ago)"
    )
    parser.add_argument("--to", dest="end", metavar="DAY", help="last day (default: today)")
    _add_format(parser)


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=int, default=50, metavar="ENTRIES", help="show at most this many entries (default: 50)"
    )
    _add_format(parser)


def _add_new_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the name to give it")


def _add_key_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key_name", metavar="name", help="the key's name or id; `plainsql keys` lists them")


def _add_revocation(parser: argparse.ArgumentParser) -> None:
    _add_key_name(parser)
    _add_yes(parser)


def _add_key(parser: argparse.ArgumentParser) -> None:
    _add_new_name(parser)
    scopes = (
        "what the key may do: read; write, which includes read; or admin, for databases and keys, which includes "
        "neither. Repeat it for several."
    )
    parser.add_argument("--scope", action="append", required=True, choices=SCOPES, help=scopes)
    parser.add_argument("--bound-to", metavar="DATABASE", help="restrict the key to this database; as --database does")
    shown = (
        "when the key expires, such as 2027-01-31T00:00:00Z; without Z or an offset, in this machine's time zone; "
        "a date means 00:00 (default: never)"
    )
    parser.add_argument("--expires-at", metavar="TIME", help=shown)


def _add_rotation(parser: argparse.ArgumentParser) -> None:
    _add_key_name(parser)
    shown = "how long the old key stays valid (default: an hour)"
    parser.add_argument("--overlap", type=int, metavar="SECONDS", help=shown)


def _add_session(parser: argparse.ArgumentParser) -> None:
    shown = "restrict the session to this scope; repeat it for several (default: the key's scopes)"
    parser.add_argument("--scope", action="append", choices=SCOPES, help=shown)
    shown = "restrict the session to this database; as --database does"
    parser.add_argument("--bound-to", metavar="DATABASE", help=shown)
    shown = (
        "how long the session lasts, from 60 to 86400; with less than 86400, it can't be extended (default: 86400, "
        "which is 24 hours)"
    )
    parser.add_argument("--expires-in", type=_session_seconds, metavar="SECONDS", help=shown)


def _session_seconds(text: str) -> int:
    if not text.isdecimal() or not _SESSION_SHORTEST_S <= int(text) <= _SESSION_LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a number from {_SESSION_SHORTEST_S} to {_SESSION_LONGEST_S}")
    return int(text)


def _add_mcp(parser: argparse.ArgumentParser) -> None:
    shown = "let the agent write; each transaction is rehearsed first, and you are asked (default: it can only read)"
    parser.add_argument("--allow-writes", action="store_true", help=shown)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure (default: 2)")
    parser.add_argument("--sql", default="select 1", help="the statement to run (default: select 1)")
    parser.add_argument("--clients", type=int, default=1, metavar="NUMBER", help="concurrent connections (default: 1)")
    _add_format(parser)


def _add_login(parser: argparse.ArgumentParser) -> None:
    shown = (
        "https://host:port (or use --url). On a terminal, prompts for the key unless --key is given. Otherwise, reads "
        "it from standard input or, if that is empty, from PLAINSQL_KEY."
    )
    parser.add_argument("address", nargs="?", help=shown)


_DATABASE_VERBS = {
    "list": Command("list databases (the default)", "nouns:list_databases", _add_format),
    "create": Command("create a database; prints its id", "nouns:create_database", _add_new_name),
    "branch": Command("create a copy of a database; prints its id", "branches.verbs:create_branch", _add_branch),
    "diff": Command("show how the schema of a branch differs from its parent's", "branches.verbs:show_diff", _add_diff),
    "default": Command("make a database the default", "nouns:make_default", _add_name),
    "rename": Command("rename a database", "nouns:rename_database", _add_rename),
    "delete": Command("delete a database; you can restore it for a while", "nouns:delete_database", _add_delete),
    "restore": Command(
        "restore a deleted database, or one as it was at a time", "branches.restoring:restore_database", _add_restore
    ),
    "restores": Command(
        "list restores to a point in time, and how far they are", "branches.restoring:list_restores", _add_format
    ),
}
_KEY_VERBS = {
    "list": Command("list API keys (the default)", "nouns:list_keys", _add_format),
    "create": Command("create a key; prints its secret once, to standard output", "nouns:create_key", _add_key),
    "rotate": Command("replace a key with a new one; prints its secret once", "nouns:rotate_key", _add_rotation),
    "revoke": Command("revoke a key and its sessions, at once", "nouns:revoke_key", _add_revocation),
}
_COMMANDS = {
    "sql": Command("run statements; several are one transaction", "sql:run_sql", _add_sql),
    "shell": Command("start the interactive shell", "shell.session:run_shell"),
    "import": Command("load a file into a table; all rows or none", "importing:run_import", _add_import),
    "export": Command("save a table or a query result to a file", "exporting:run_export", _add_export),
    "tables": Command("list tables", "nouns:list_tables", _add_tables),
    "databases": Command(
        "list databases, or create, branch, rename, delete or restore one",
        "nouns:list_databases",
        _add_format,
        _DATABASE_VERBS,
    ),
    "keys": Command("list API keys, or create, rotate or revoke one", "nouns:list_keys", _add_format, _KEY_VERBS),
    "session": Command(
        "exchange the key for a session token, for 24 hours or less", "nouns:create_session", _add_session
    ),
    "usage": Command("show requests, rows and engine time by day and database", "nouns:show_usage", _add_usage),
    "audit": Command("show who changed what, newest first", "nouns:show_audit", _add_audit),
    "reset": Command("drop everything in a database, for good", "nouns:reset_database", _add_reset),
    "health": Command("show whether the service is healthy, as JSON", "service:show_health"),
    "bench": Command("measure the service's latency from here", "service:run_bench", _add_bench),
    "mcp": Command("serve an AI agent on standard input and output (Model Context Protocol)", "mcp:run_mcp", _add_mcp),
    "login": Command("save a URL and a key for later commands", "service:log_in", _add_login),
    "whoami": Command("show the service, organization and key in use, as JSON", "service:show_caller"),
}
