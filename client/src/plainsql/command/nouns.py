"""The subcommands for tables, databases, keys, sessions, usage and the audit log.

Lists go to standard output in the chosen format. A new secret goes there, too, with nothing else. Messages go to
standard error.
"""

import argparse
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from plainsql.client import Client
from plainsql.command.confirmation import confirm
from plainsql.command.readable import readable_name, readable_size, readable_time, readable_value
from plainsql.command.tables import aligned, cell, csv_line, json_of, text_of
from plainsql.command.target import connect
from plainsql.command.terminal import say
from plainsql.control import Database, Key, Session, rotate_key_and_show_both
from plainsql.errors import ResultError


def write_records(columns: Sequence[str], records: Iterable[Any], output_format: str) -> None:
    """Prints records. A record is a dictionary or an object with these attributes."""
    rows = [[_field(record, name) for name in columns] for record in records]
    if output_format == "table":
        lines = list(_table(columns, rows))
    elif output_format == "csv":
        lines = [csv_line(columns), *(csv_line(None if v is None else text_of(v) for v in row) for row in rows)]
    else:
        lines = [json_of(dict(zip(columns, row, strict=True))) for row in rows]
        if output_format == "json":
            lines = ["[", ",\n".join(lines), "]"] if lines else ["[]"]
    print("\n".join(lines))


def _table(columns: Sequence[str], rows: list[list[Any]]) -> Iterable[str]:
    """An aligned table, with sizes and times for people."""
    by_column = zip(*rows, strict=True)
    types = ["numeric" if any(type(value) in (int, float) for value in each) else "text" for each in by_column]
    shown = [[cell(readable_value(name, value)) for name, value in zip(columns, row, strict=True)] for row in rows]
    return aligned([readable_name(name) for name in columns], shown, types)


def _field(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else getattr(record, name)


def list_tables(options: argparse.Namespace) -> int:
    with connect(options) as db:
        found = db.tables(schema=options.schema, detail="full")
    write_records(("schema", "name", "kind", "row_estimate", "size_bytes"), found, options.output_format)
    return 0


def list_databases(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        found = list(db.list_databases())
    names = {each.id: each.name for each in found}
    columns: tuple[str, ...] = ("name", "state", "default", "size_bytes", "created_at", "id")
    listed = [
        {
            **{name: getattr(each, name) for name in columns},
            "branch_of": names.get(each.branch_of or "", each.branch_of),
            "expires_at": each.expires_at,
        }
        for each in found
    ]
    write_records((*columns, "branch_of", "expires_at"), listed, options.output_format)
    return 0


def create_database(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        made = db.create_database(options.name)
    say(f"Created database {made.name!r}.")
    print(made.id)
    return 0


def rename_database(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        renamed = db.rename_database(database_named(db, options.name).id, options.new_name)
    say(f"Renamed database {options.name!r} to {renamed.name!r}.")
    return 0


def make_default(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        changed = db.make_default_database(database_named(db, options.name).id)
    say(f"Database {changed.name!r} is now the default.")
    return 0


def delete_database(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        found = database_named(db, options.name)
        size = f", {readable_size(found.size_bytes)}," if found.size_bytes is not None else ""
        for_good = " for good" if options.for_good else ""
        confirm(options, found.name, f"This deletes the database {found.name!r}{size} with everything in it{for_good}.")
        deleted = db.delete_database(found.id, restorable=not options.for_good)
    until = f". It can be restored until {readable_time(deleted.restorable_until)}" if deleted.restorable_until else ""
    say(f"Deleted database {deleted.name!r}{until}.")
    return 0


def database_named(db: Client, name: str) -> Database:
    """The database with that name or id."""
    for database in db.list_databases():
        if name in (database.name, database.id):
            return database
    raise ResultError(f"Database {name!r} doesn't exist.")


def list_keys(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        found = list(db.list_keys())
    columns = ("id", "name", "state", "scopes", "database", "prefix", "last_four", "last_used_at", "expires_at")
    write_records(columns, found, options.output_format)
    return 0


def create_key(options: argparse.Namespace) -> int:
    expires_at = expiry_of(options.expires_at) if options.expires_at else None
    with connect(options, uses_database=False) as db:
        made = db.create_key(options.name, options.scope, database=_binding(options), expires_at=expires_at)
    _warn_of_binding(made)
    bound = f"bound to the database {made.database!r}" if made.database else "for all databases"
    expiry = f" It expires at {readable_time(made.expires_at)}." if made.expires_at else ""
    say(f"Created {made.id}, {bound}.{expiry} Save its secret now; it isn't stored and can't be shown again:")
    print(made.secret)
    return 0


def _binding(options: argparse.Namespace) -> str | None:
    """The database to bind a key or session to. PLAINSQL_DATABASE isn't meant for that."""
    if options.bound_to and options.database and options.bound_to != options.database:
        raise ValueError("--bound-to and --database name different databases.")
    return options.bound_to or options.database  # type: ignore[no-any-return]  # argparse's


def _warn_of_binding(made: Key | Session) -> None:
    """Says what the scope `admin` is worth to a credential that is bound to a database."""
    if made.database and "admin" in made.scopes:
        say(
            "Warning: bound to a database, admin can't manage the organization: no keys, no databases, no usage. It "
            f"can only reset {made.database!r}."
        )


def expiry_of(text: str) -> dt.datetime:
    """The time of an option `--expires-at`."""
    return time_of("--expires-at", text)


def time_of(option: str, text: str) -> dt.datetime:
    """The time that an option gives."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{option} {text!r} isn't a time, such as 2027-01-31T00:00:00Z.") from None
    # A time without an offset is one of this machine.
    return time if time.tzinfo else time.astimezone()


def rotate_key(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        found = _key(db, options.key_name, takes_newest=True)
        made, replaced = db.call(rotate_key_and_show_both(found.id, options.overlap))
    is_valid = replaced.state == "active" and replaced.expires_at
    validity = f"is valid until {readable_time(replaced.expires_at or '')}" if is_valid else "is no longer valid"
    say(f"Created {made.id} to replace {replaced.id}, which {validity}. Save its secret now; it can't be shown again:")
    print(made.secret)
    return 0


def revoke_key(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        found = _key(db, options.key_name)
        question = f"This revokes the key {found.name!r} (…{found.last_four}). Programs that use it stop working."
        confirm(options, found.name, question)
        db.revoke_key(found.id)
    say(f"Revoked {found.name!r} ({found.id}).")
    return 0


def _key(db: Client, name: str, *, takes_newest: bool = False) -> Key:
    """The key with this id, or the only active key with this name.

    With `takes_newest`, keys that have been rotated don't count if the key that replaced them is active.
    """
    keys = {key.id: key for key in db.list_keys()}
    if name in keys:
        return keys[name]
    named = [key for key in keys.values() if key.name == name]
    active = [key for key in named if key.state == "active"]
    successors = _successors(keys, active)
    found = [key for key in active if not takes_newest or key.id not in successors]
    if not named:
        raise ResultError(f"Key {name!r} doesn't exist.")
    if not found:
        raise ResultError(f"No active key is named {name!r}: {named[-1].id} is {named[-1].state}.")
    if len(found) > 1:
        listed = "".join(f"\n  {key.id}: {_described(key, successors.get(key.id))}" for key in found)
        raise ValueError(f"Several keys are named {name!r}. Give the id:{listed}")
    return found[0]


def _successors(keys: Mapping[str, Key], active: Sequence[Key]) -> dict[str, str]:
    """The active key that replaced a key, directly or through others, by the id of the replaced one."""
    found = {}
    # The newest first: what it replaced needs no second look.
    for key in reversed(active):
        replaced = key.replaces
        while replaced and replaced not in found:
            found[replaced] = key.id
            replaced = keys[replaced].replaces if replaced in keys else None
    return found


def _described(key: Key, successor: str | None) -> str:
    parts = [key.state, f"…{key.last_four}"]
    parts += [f"replaced by {successor}"] if successor else []
    parts += [f"expires at {readable_time(key.expires_at)}"] if key.expires_at else []
    return ", ".join(parts)


def create_session(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        made = db.create_session(scopes=options.scope, database=_binding(options), expires_in_s=options.expires_in)
    _warn_of_binding(made)
    until = readable_time(made.expires_at)
    bound = f"bound to the database {made.database!r}" if made.database else "for all databases"
    say(f"Created a session with scopes {', '.join(made.scopes)}, {bound}. It expires at {until}. Its token:")
    print(made.token)
    return 0


def show_usage(options: argparse.Namespace) -> int:
    start, end = (_day(text) if text else None for text in (options.start, options.end))
    with connect(options, uses_database=False) as db:
        found = list(db.usage(start=start, end=end))
    write_records(("day", "database", "requests", "rows", "engine_us", "bytes"), found, options.output_format)
    return 0


def _day(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} isn't a day, such as 2026-11-01.") from None


def show_audit(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        found = list(islice(db.audit(), options.limit))
    if options.output_format == "table":
        found = [{**each, "actor": _actor(each["actor"])} for each in found]
    write_records(("at", "actor", "action", "target_id", "details"), found, options.output_format)
    return 0


def _actor(actor: dict[str, Any]) -> str:
    return actor.get("id") or str(actor.get("kind"))


def reset_database(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        name = options.name
        confirm(options, name, f"This drops everything in the database {name!r}. It can't be undone.")
        dropped = db.reset_database(name)
    counts = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in dropped.items() if count)
    say(f"Emptied database {name!r}. Dropped: {counts or 'nothing'}.")
    return 0
