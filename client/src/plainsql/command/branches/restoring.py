"""The subcommands `databases restore` and `databases restores`, and the progress of a restore to a point in time."""

import argparse
import datetime as dt
import sys
import time

from plainsql.client import Client
from plainsql.command.confirmation import confirm
from plainsql.command.nouns import database_named, time_of, write_records
from plainsql.command.readable import readable_duration, readable_size, readable_time
from plainsql.command.tables import visible
from plainsql.command.target import connect
from plainsql.command.terminal import say
from plainsql.control import Restore
from plainsql.errors import ResultError

_LOOK_EVERY_S = 1.0
_ENDED = ("done", "failed")


def restore_database(options: argparse.Namespace) -> int:
    at = time_of("--at", options.at) if options.at else None
    with connect(options, uses_database=False) as db:
        found = database_named(db, options.name)
        if at is None:
            say(f"Restored database {db.restore_database(found.id).name!r}.")
            return 0
        shown = readable_time(at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z"))
        confirm(
            options, found.name, f"This replaces everything in the database {found.name!r} by what it was at {shown}."
        )
        done = follow(db, db.restore_database_at(found.id, at))
        replaced = next((each for each in db.list_databases() if each.id == done.replaced_id), None)
    kept = ""
    if replaced is not None and replaced.restorable_until:
        until = readable_time(replaced.restorable_until)
        kept = f" What it was until now is {replaced.name!r}, a deleted database. It can be restored until {until}."
    say(f"Restored database {found.name!r} as it was at {shown}.{kept}")
    if done.missing_transactions:
        say(
            f"Transactions over several databases that are missing: {done.missing_transactions}. They were being"
            " committed at that time. Their parts in other databases may be there."
        )
    return 0


def list_restores(options: argparse.Namespace) -> int:
    with connect(options, uses_database=False) as db:
        names = {each.id: each.name for each in db.list_databases()}
        found = [
            {
                "id": each.id, "state": each.state, "database": names.get(each.database_id, each.database_id),
                "branch": names.get(each.branch_id or "", each.branch_id), "at": each.at,
                "progress": progress_line(each) if each.state not in _ENDED else (each.error or {}).get("message"),
                "created_at": each.created_at, "ended_at": each.ended_at,
            }
            for each in db.list_restores()
        ]  # fmt: skip
    columns = ("state", "database", "branch", "at", "progress", "created_at", "ended_at", "id")
    write_records(columns, found, options.output_format)
    return 0


def follow(db: Client, restore: Restore) -> Restore:
    """Waits until the restore is done, and shows how far it is. Raises ResultError if it fails."""
    try:
        restore = _ended(db, restore)
    except KeyboardInterrupt:
        say(f"\nThe restore {restore.id} goes on. `plainsql databases restores` shows how far it is.")
        raise
    if restore.error is not None:
        hint = f" {restore.error['hint']}" if restore.error.get("hint") else ""
        raise ResultError(f"{restore.error['message']}{hint} ({restore.error['code']}, {restore.id})")
    return restore


def _ended(db: Client, restore: Restore) -> Restore:
    moves, step = sys.stderr.isatty(), None
    while restore.state not in _ENDED:
        if moves:
            sys.stderr.write(f"\r{visible(progress_line(restore))}\x1b[K")
            sys.stderr.flush()
        elif (restore.step or restore.state) != step:
            step = restore.step or restore.state
            say(step)
        time.sleep(_LOOK_EVERY_S)
        restore = db.get_restore(restore.id)
    if moves:
        sys.stderr.write("\r\x1b[K")
    return restore


def progress_line(restore: Restore) -> str:
    """The step, the bytes and the time that it still takes."""
    parts = [restore.step or restore.state]
    if restore.done_bytes is not None and restore.total_bytes is not None:
        parts.append(f"{readable_size(restore.done_bytes)} of {readable_size(restore.total_bytes)}")
    if restore.seconds_left is not None:
        parts.append(f"{readable_duration(restore.seconds_left * 1e6)} left")
    return ", ".join(parts)
