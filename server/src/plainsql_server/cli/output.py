"""Printing: aligned columns for people, JSON for programs.

    print_records(records, ["id", "name"], as_json=as_json)
    remark("Created the organization 'Acme'.")

Results go to stdout, remarks to stderr. Secrets are never printed as part of a record.
"""

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

# Fields of records that are never printed.
_SECRETS = frozenset(["record_secret"])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of columns.")

yes_option = click.option("--yes", is_flag=True, help="Don't ask for confirmation. Scripts need this.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a change that can't be undone. Without a terminal, nobody can answer, so `yes` is required there."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask for confirmation. Add --yes.")
    click.confirm(question, abort=True, err=True)


def print_records(records: Sequence[Any], columns: Sequence[str], *, as_json: bool) -> None:
    """Print records (dataclasses): the given fields as columns, or all fields except secrets as a JSON list."""
    if as_json:
        listed = [{name: getattr(each, name) for name in _fields(each) if name not in _SECRETS} for each in records]
        click.echo(msgspec.json.format(msgspec.json.encode(listed), indent=2))
        return
    print_table(columns, [[_shown(getattr(record, column)) for column in columns] for record in records])


def print_one(record: Any) -> None:
    """Print one record (a dataclass) as a JSON object, without secrets of the service."""
    shown = {name: getattr(record, name) for name in _fields(record) if name not in _SECRETS}
    click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header. Each column is as wide as its widest value."""
    for line in table_lines(columns, rows):
        click.echo(line)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines that `print_table` prints."""
    lines = [[column.upper().replace("_", " ") for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return ["  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def remark(text: str) -> None:
    """Print a message to stderr, apart from the result."""
    click.echo(text, err=True)


def _fields(record: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%SZ")
        case str():
            return value
        case Iterable():
            return ",".join(sorted(str(each) for each in value))
    return str(value)
