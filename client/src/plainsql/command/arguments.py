"""The arguments of `plainsql`: the subcommands, their options, and their help.

Owns the names. A parser is made for the subcommand that is asked for and for no other, and its work is imported when
it is run, so that nobody waits for what is not used. The settings (`--url` and so on) may stand before a subcommand or
behind it.
"""

import argparse
import os
from collections.abc import Callable
from importlib import import_module

from plainsql import VERSION

FORMS = ("table", "json", "csv", "ndjson")
FILE_FORMS = ("csv", "ndjson", "parquet")
SCOPES = ("read", "write", "admin")
_DESCRIPTION = "SQL over plain HTTPS. Without a subcommand: the interactive shell."
_EPILOG = """\
settings, the first that is there counts:
  options, then PLAINSQL_URL, PLAINSQL_KEY, PLAINSQL_DATABASE,
  PLAINSQL_CA_FILE, PLAINSQL_CONTROL_URL, then ./.plainsql/dev.json, which
  `plainsql-server dev` writes, then `plainsql login`

exit codes:
  0 done    1 the service said no    2 wrong usage or settings
  3 the credential is not good for it    4 service or network away
  130 interrupted
"""
_SETTINGS_ARE_ELSEWHERE = "The settings of plainsql --help, such as --url, may stand here, too."


class Command:
    """A subcommand: its help, where its work is (`module:function`), its arguments, its own subcommands."""

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
    """The options, with `run`, the function that does the work."""
    command = Command(_DESCRIPTION, "shell:run_shell", _add_settings, _COMMANDS)
    options, name = argparse.Namespace(), "plainsql"
    while True:
        parser = _parser(name, command)
        parser.parse_args(arguments, options)
        if not getattr(options, "verb", None):
            break
        verb, *arguments = options.verb
        if verb not in command.verbs:
            parser.error(f"there is no subcommand {verb!r}; there are {', '.join(command.verbs)}")
        options.verb = None
        name, command = f"{name} {verb}", command.verbs[verb]
    if options.version:
        parser.exit(0, f"plainsql {VERSION}\n")
    options.run = _work(command.work)
    return options


def _work(place: str) -> Callable[[argparse.Namespace], int]:
    module, _, name = place.partition(":")

    def run(options: argparse.Namespace) -> int:
        work: Callable[[argparse.Namespace], int] = getattr(import_module(f"plainsql.command.{module}"), name)
        return work(options)

    return run


def _parser(name: str, command: Command) -> argparse.ArgumentParser:
    is_first = command.verbs is _COMMANDS
    parser = argparse.ArgumentParser(
        prog=name,
        description=command.text,
        epilog="\n".join(_verb_lines(command)) + (_EPILOG if is_first else _SETTINGS_ARE_ELSEWHERE),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_columns()),
    )
    if not is_first:
        _add_settings(parser, is_first=False)
    if command.add is not None:
        command.add(parser)
    if command.verbs:
        verb = parser.add_argument("verb", nargs=argparse.PARSER, metavar="SUBCOMMAND", help="one of those below")
        verb.required = False
    return parser


def _verb_lines(command: Command) -> list[str]:
    if not command.verbs:
        return []
    return ["subcommands:", *(f"    {name:<12}{verb.text}" for name, verb in command.verbs.items()), "", ""]


def _columns() -> int:
    """The terminal's width, without what `shutil` brings along."""
    try:
        return os.get_terminal_size().columns - 2
    except OSError:
        return 78


def _add_settings(parser: argparse.ArgumentParser, *, is_first: bool = True) -> None:
    """The settings; behind a subcommand they count if they are there, and are not explained again."""

    def add(*names: str, text: str, default: object = None, **more: object) -> None:
        shown = text if is_first else argparse.SUPPRESS
        default = default if is_first else argparse.SUPPRESS
        parser.add_argument(*names, help=shown, default=default, **more)  # type: ignore[arg-type]  # as argparse's

    add("--url", text="address of the service, https://host:port")
    add("--key", text="API key or session token; better in PLAINSQL_KEY, where `ps` does not show it")
    add("-d", "--database", text="database, if not the organization's default")
    add("--ca-file", text="certificate authority to trust instead of the system's")
    said = "for each call, 60 by default; for streamed results, as long as the tier allows"
    add("--timeout", type=float, metavar="SECONDS", text=said)
    if is_first:
        add("--version", action="store_true", default=False, text="show the version and exit")


def _add_form(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", dest="form", choices=FORMS, default="table", help="table by default")


def _add_sql(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("statements", nargs="*", metavar="SQL", help="without any, one is read from standard input")
    parser.add_argument("-f", "--file", help="read the statement from a file")
    parser.add_argument("-p", "--param", action="append", default=[], metavar="VALUE", help="value of $1, then $2, …")
    parser.add_argument("--max-rows", type=int, help="show so many rows at the most")
    parser.add_argument("--read-only", action="store_true", default=None, help="refuse to write")
    parser.add_argument("--idempotency-key", help="the same key does nothing twice")
    _add_form(parser)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="CSV, NDJSON or Parquet; - for standard input")
    parser.add_argument("--table", required=True, help="an existing table, with its schema if need be")
    parser.add_argument("--format", choices=FILE_FORMS, help="by default, what the file's name says")
    parser.add_argument("--columns", help="names, separated by commas, if the CSV has no header")
    parser.add_argument("--delimiter", help="of the CSV; by default a comma, and a tab for .tsv")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="CSV, NDJSON or Parquet; - for standard output")
    parser.add_argument("--table", help="the table to save")
    parser.add_argument("--sql", help="or the query whose result to save")
    parser.add_argument("--format", choices=FILE_FORMS, help="by default, what the file's name says")


def _add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", help="of this schema alone")
    _add_form(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="name or id")


def _add_rename(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument("new_name")


def _add_delete(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument("--for-good", action="store_true", help="give up that it can be restored")


def _add_new_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a name of your choice")


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="as `plainsql keys` lists it")


def _add_key(parser: argparse.ArgumentParser) -> None:
    _add_new_name(parser)
    scopes = "what it may do; may be given several times"
    parser.add_argument("--scope", action="append", required=True, choices=SCOPES, help=scopes)
    parser.add_argument("--bound-to", metavar="DATABASE", help="bind the key to this database")
    parser.add_argument("--expires-at", metavar="TIME", help="such as 2027-01-31T00:00:00Z")


def _add_rotation(parser: argparse.ArgumentParser) -> None:
    _add_id(parser)
    parser.add_argument("--overlap", type=int, metavar="SECONDS", help="how long the old one goes on")


def _add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scope", action="append", choices=SCOPES, help="to have fewer than the key; may be given several times"
    )


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=2.0, help="2 by default")
    parser.add_argument("--sql", default="select 1", help="select 1 by default")
    parser.add_argument("--clients", type=int, default=1, help="connections that ask at once")
    _add_form(parser)


def _add_login(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", nargs="?", help="https://host:port, if not --url; the key is asked for, if not --key"
    )


_DATABASE_VERBS = {
    "create": Command("create a database", "nouns:create_database", _add_new_name),
    "default": Command("make it the default", "nouns:make_default", _add_name),
    "rename": Command("rename a database", "nouns:rename_database", _add_rename),
    "delete": Command("delete a database", "nouns:delete_database", _add_delete),
    "restore": Command("restore a deleted database", "nouns:restore_database", _add_name),
}
_KEY_VERBS = {
    "create": Command("create a key; its secret goes to standard output, once", "nouns:create_key", _add_key),
    "rotate": Command("replace a key by a new one", "nouns:rotate_key", _add_rotation),
    "revoke": Command("revoke a key", "nouns:revoke_key", _add_id),
}
_COMMANDS = {
    "sql": Command("run a statement, or several as one transaction", "sql:run_sql", _add_sql),
    "shell": Command("the interactive shell", "shell:run_shell"),
    "import": Command("load a file into a table, whole or not at all", "importing:run_import", _add_import),
    "export": Command("save a table or a query's result to a file", "exporting:run_export", _add_export),
    "tables": Command("list the tables", "nouns:list_tables", _add_tables),
    "databases": Command(
        "list the databases; or create, rename, delete, restore one", "nouns:list_databases", _add_form, _DATABASE_VERBS
    ),
    "keys": Command("list the API keys; or create, rotate, revoke one", "nouns:list_keys", _add_form, _KEY_VERBS),
    "session": Command("exchange the key for a session token", "nouns:create_session", _add_session),
    "health": Command("whether the service can work", "service:show_health"),
    "bench": Command("measure the service from here", "service:run_bench", _add_bench),
    "login": Command("save an address and a key for later commands", "service:log_in", _add_login),
    "whoami": Command("which service, organization and key this is", "service:show_caller"),
}
