"""The subcommands that list and change things: tables, databases, keys, sessions.

Lists go to standard output in the form that is asked for; so does a new secret, alone. What was done is said on
standard error.
"""

import argparse
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from plainsql.client import Client
from plainsql.command.tables import aligned, cell, csv_line, json_of, text_of
from plainsql.command.target import connect
from plainsql.command.terminal import say
from plainsql.control import Database
from plainsql.errors import ResultError


def write_records(columns: Sequence[str], records: Iterable[Any], form: str) -> None:
    """Prints records, by their attributes or items."""
    rows = [[_field(record, name) for name in columns] for record in records]
    if form == "table":
        by_column = zip(*rows, strict=True)
        types = ["numeric" if any(type(value) in (int, float) for value in each) else "text" for each in by_column]
        lines = list(aligned(columns, [[cell(value) for value in row] for row in rows], types))
    elif form == "csv":
        lines = [csv_line(columns), *(csv_line(None if v is None else text_of(v) for v in row) for row in rows)]
    else:
        lines = [json_of(dict(zip(columns, row, strict=True))) for row in rows]
        if form == "json":
            lines = ["[", ",\n".join(lines), "]"] if lines else ["[]"]
    print("\n".join(lines))


def _field(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else getattr(record, name)


def list_tables(options: argparse.Namespace) -> int:
    with connect(options) as db:
        found = db.tables(schema=options.schema, detail="full")
    write_records(("schema", "name", "kind", "row_estimate", "size_bytes"), found, options.form)
    return 0


def list_databases(options: argparse.Namespace) -> int:
    with connect(options) as db:
        found = list(db.list_databases())
    write_records(("name", "state", "default", "size_bytes", "created_at", "id"), found, options.form)
    return 0


def create_database(options: argparse.Namespace) -> int:
    with connect(options) as db:
        made = db.create_database(options.name)
    say(f"Created the database {made.name!r}.")
    print(made.id)
    return 0


def rename_database(options: argparse.Namespace) -> int:
    with connect(options) as db:
        renamed = db.rename_database(_database(db, options.name).id, options.new_name)
    say(f"The database {options.name!r} is called {renamed.name!r} from now on.")
    return 0


def make_default(options: argparse.Namespace) -> int:
    with connect(options) as db:
        changed = db.make_default_database(_database(db, options.name).id)
    say(f"The database {changed.name!r} is the default.")
    return 0


def delete_database(options: argparse.Namespace) -> int:
    with connect(options) as db:
        deleted = db.delete_database(_database(db, options.name).id, restorable=not options.for_good)
    until = f"; it can be restored until {deleted.restorable_until}" if deleted.restorable_until else ""
    say(f"Deleted the database {deleted.name!r}{until}.")
    return 0


def restore_database(options: argparse.Namespace) -> int:
    with connect(options) as db:
        restored = db.restore_database(_database(db, options.name).id)
    say(f"Restored the database {restored.name!r}.")
    return 0


def _database(db: Client, name: str) -> Database:
    for database in db.list_databases():
        if name in (database.name, database.id):
            return database
    raise ResultError(f"There is no database {name!r}.")


def list_keys(options: argparse.Namespace) -> int:
    with connect(options) as db:
        found = list(db.list_keys())
    columns = ("id", "name", "state", "scopes", "database", "prefix", "last_four", "last_used_at", "expires_at")
    write_records(columns, found, options.form)
    return 0


def create_key(options: argparse.Namespace) -> int:
    expires_at = dt.datetime.fromisoformat(options.expires_at) if options.expires_at else None
    with connect(options) as db:
        made = db.create_key(options.name, options.scope, database=options.bound_to, expires_at=expires_at)
    say(f"Created {made.id}. This is its secret; it is not stored and cannot be shown again:")
    print(made.secret)
    return 0


def rotate_key(options: argparse.Namespace) -> int:
    with connect(options) as db:
        made = db.rotate_key(options.id, overlap_seconds=options.overlap)
    say(f"Created {made.id} in the place of {options.id}. This is its secret; it cannot be shown again:")
    print(made.secret)
    return 0


def revoke_key(options: argparse.Namespace) -> int:
    with connect(options) as db:
        db.revoke_key(options.id)
    say(f"Revoked {options.id}.")
    return 0


def create_session(options: argparse.Namespace) -> int:
    with connect(options) as db:
        made = db.create_session(scopes=options.scope, database=options.database)
    say(f"A session with the scopes {', '.join(made.scopes)}, until {made.expires_at}. Its token:")
    print(made.token)
    return 0
