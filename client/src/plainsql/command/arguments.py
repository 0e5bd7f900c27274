"""The arguments of `plainsql`: the subcommands, their options, and their help.

Owns the names. Each subcommand's work is imported when it is run, never here.
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from plainsql import VERSION

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

FORMS = ("table", "json", "csv", "ndjson")
_EPILOG = """\
settings, the first that is there counts:
  options, then PLAINSQL_URL, PLAINSQL_KEY, PLAINSQL_DATABASE, PLAINSQL_CA_FILE,
  then ./.plainsql/dev.json, which `plainsql-server dev` writes, then `plainsql login`

exit codes:
  0 done    1 the service said no    2 wrong usage or settings
  3 the credential is not good for it    4 service or network away    130 interrupted
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options, with `run`, the function that does the work."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.version:
        parser.exit(0, f"plainsql {VERSION}\n")
    if options.run is None:
        options.run = _work("shell", "run_shell")
    return options


def _work(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        work: Callable[[argparse.Namespace], int] = getattr(import_module(f"plainsql.command.{module}"), name)
        return work(options)

    return run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plainsql",
        description="SQL over plain HTTPS. Without a subcommand: the interactive shell.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="address of the service, https://host:port")
    parser.add_argument("--key", help="API key or session token; better in PLAINSQL_KEY, where `ps` does not show it")
    parser.add_argument("-d", "--database", help="database, if not the organization's default")
    parser.add_argument("--ca-file", help="certificate authority to trust instead of the system's")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for each call, 60 by default")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(title="subcommands", metavar="")
    _add_sql(commands)
    _add_transfers(commands)
    _add_nouns(commands)
    _add_service(commands)
    parser.set_defaults(run=None)
    return parser


def _command(commands: "Commands", name: str, text: str, module: str, work: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=_work(module, work))
    return made


def _add_form(command: argparse.ArgumentParser, default: str = "table") -> None:
    command.add_argument("-o", "--output", dest="form", choices=FORMS, default=default, help=f"{default} by default")


def _add_sql(commands: "Commands") -> None:
    sql = _command(commands, "sql", "run a statement, or several as one transaction", "sql", "run_sql")
    sql.add_argument("statements", nargs="*", metavar="SQL", help="without any, one is read from standard input")
    sql.add_argument("-f", "--file", help="read the statement from a file")
    sql.add_argument("-p", "--param", action="append", default=[], metavar="VALUE", help="value of $1, then $2, …")
    sql.add_argument("--max-rows", type=int, help="show so many rows at the most")
    sql.add_argument("--read-only", action="store_true", default=None, help="refuse to write")
    sql.add_argument("--idempotency-key", help="the same key does nothing twice")
    _add_form(sql)
    _command(commands, "shell", "the interactive shell", "shell", "run_shell")


def _add_transfers(commands: "Commands") -> None:
    load = _command(commands, "import", "load a file into a table, whole or not at all", "importing", "run_import")
    load.add_argument("file", help="CSV, NDJSON or Parquet; - for standard input")
    load.add_argument("--table", required=True, help="an existing table, with its schema if need be")
    load.add_argument("--format", choices=("csv", "ndjson", "parquet"), help="by default, what the file's name says")
    load.add_argument("--columns", help="names, separated by commas, if the CSV has no header")
    load.add_argument("--delimiter", default=",", help="of the CSV, a comma by default")
    save = _command(commands, "export", "save a table or a query's result to a file", "exporting", "run_export")
    save.add_argument("file", help="CSV, NDJSON or Parquet; - for standard output")
    save.add_argument("--table", help="the table to save")
    save.add_argument("--sql", help="or the query whose result to save")
    save.add_argument("--format", choices=("csv", "ndjson", "parquet"), help="by default, what the file's name says")


def _add_nouns(commands: "Commands") -> None:
    tables = _command(commands, "tables", "list the tables", "nouns", "list_tables")
    tables.add_argument("--schema")
    _add_form(tables)
    databases = commands.add_parser("databases", help="list, create, delete, restore databases")
    _add_form(databases)
    databases.set_defaults(run=_work("nouns", "list_databases"))
    verbs = databases.add_subparsers(title="verbs", metavar="")
    _command(verbs, "create", "create a database", "nouns", "create_database").add_argument("name")
    _command(verbs, "default", "make it the default", "nouns", "make_default").add_argument("name", help="name or id")
    renamed = _command(verbs, "rename", "rename a database", "nouns", "rename_database")
    renamed.add_argument("name", help="name or id")
    renamed.add_argument("new_name")
    deleted = _command(verbs, "delete", "delete a database", "nouns", "delete_database")
    deleted.add_argument("name", help="name or id")
    deleted.add_argument("--for-good", action="store_true", help="give up that it can be restored")
    _command(verbs, "restore", "restore a deleted database", "nouns", "restore_database").add_argument("name")
    _add_keys(commands)
    session = _command(commands, "session", "exchange the key for a session token", "nouns", "create_session")
    session.add_argument("--scope", action="append", choices=("read", "write", "admin"), help="fewer than the key's")


def _add_keys(commands: "Commands") -> None:
    keys = commands.add_parser("keys", help="list, create, rotate, revoke API keys")
    _add_form(keys)
    keys.set_defaults(run=_work("nouns", "list_keys"))
    verbs = keys.add_subparsers(title="verbs", metavar="")
    made = _command(verbs, "create", "create a key; its secret goes to standard output, once", "nouns", "create_key")
    made.add_argument("name")
    made.add_argument("--scope", action="append", required=True, choices=("read", "write", "admin"))
    made.add_argument("--bound-to", metavar="DATABASE", help="bind the key to this database")
    made.add_argument("--expires-at", metavar="TIME", help="such as 2027-01-31T00:00:00Z")
    rotated = _command(verbs, "rotate", "replace a key by a new one", "nouns", "rotate_key")
    rotated.add_argument("id")
    rotated.add_argument("--overlap", type=int, metavar="SECONDS", help="how long the old one goes on")
    _command(verbs, "revoke", "revoke a key", "nouns", "revoke_key").add_argument("id")


def _add_service(commands: "Commands") -> None:
    _command(commands, "health", "whether the service can work", "service", "show_health")
    bench = _command(commands, "bench", "measure the service from here", "service", "run_bench")
    bench.add_argument("--seconds", type=float, default=2.0)
    bench.add_argument("--sql", default="select 1")
    bench.add_argument("--clients", type=int, default=1, help="connections that ask at once")
    _add_form(bench)
    login = _command(commands, "login", "save an address and a key for later commands", "service", "log_in")
    login.add_argument("address", nargs="?", help="https://host:port, if not --url")
    _command(commands, "whoami", "which service, organization and key this is", "service", "show_caller")
