"""The subcommands `databases branch` and `databases diff`."""

import argparse
from typing import Any

from plainsql.client import Client
from plainsql.command.branches.restoring import follow
from plainsql.command.branches.schema_diff import SCHEMA, differences
from plainsql.command.nouns import database_named, expiry_of, time_of, write_records
from plainsql.command.readable import readable_time
from plainsql.command.target import connect
from plainsql.command.terminal import say
from plainsql.errors import ResultError


def create_branch(options: argparse.Namespace) -> int:
    expires_at = expiry_of(options.expires_at) if options.expires_at else None
    at = time_of("--at", options.at) if options.at else None
    with connect(options, uses_database=False) as db:
        if at is None:
            made = db.create_database(options.name, branch_of=options.parent, expires_at=expires_at)
        else:
            restore = db.create_branch_at(options.name, options.parent, at, expires_at=expires_at)
            made = database_named(db, follow(db, restore).branch_id or "")
    until = f" It is deleted at {readable_time(made.expires_at)}." if made.expires_at else ""
    say(f"Created database {made.name!r}, a branch of {options.parent!r}.{until}")
    print(made.id)
    return 0


def show_diff(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        branch = database_named(db, options.name)
        other = options.other or branch.branch_of
        if other is None:
            raise ResultError(f"Database {branch.name!r} isn't a branch. Name the other one: --with DATABASE.")
        parent = database_named(db, other)
        changes = list(differences(_schema(db, parent.id), _schema(db, branch.id)))
    write_records(("change", "kind", "name", "before", "after"), changes, options.output_format)
    return 0


def _schema(db: Client, database: str) -> list[dict[str, Any]]:
    return [row.as_dict() for row in db.query(SCHEMA, database=database, read_only=True)]
