"""`\\copy` in the shell, as in psql: loads a file into a table, or saves a table or a query to a file.

    \\copy notes (id, body) from 'notes.csv'
    \\copy (select * from notes) to 'notes.parquet'

The work is that of `plainsql import` and `plainsql export`. The first line of a CSV file names the columns, unless they
are given.
"""

import argparse
import re

from plainsql.client import Client
from plainsql.command.arguments import FILE_FORMATS
from plainsql.command.exporting import export_file
from plainsql.command.importing import import_file
from plainsql.errors import ResultError

_COPY = re.compile(
    r"""\s*(?:(?P<query>\(.*\))|(?P<table>(?:[\w.]|"(?:[^"]|"")*")+)\s*(?:\((?P<columns>[^)]*)\))?)
    \s+(?P<way>from|to)\s+(?:'(?P<quoted>[^']*)'|(?P<file>[^\s;]+))\s*(?P<more>.*)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_USAGE = "Usage: \\copy TABLE [(COLUMNS)] from 'FILE' [csv | ndjson | parquet], or \\copy TABLE | (QUERY) to 'FILE' […]"
# What psql's users write around the format; here it goes without saying.
_IMPLIED = frozenset(["with", "format", "header", "true"])


def copy(db: Client, argument: str) -> None:
    """Runs the command. Raises ValueError if it is not understood."""
    match = _COPY.fullmatch(argument.rstrip("; "))
    if match is None:
        raise ValueError(_USAGE)
    words = re.findall(r"\w+", match["more"].lower())
    unknown = [word for word in words if word not in _IMPLIED and word not in FILE_FORMATS]
    if unknown:
        raise ValueError(f"Unknown option {unknown[0]!r}. {_USAGE}")
    options = argparse.Namespace(
        file=match["quoted"] or match["file"], format=next((word for word in words if word in FILE_FORMATS), None),
        table=match["table"], columns=None, delimiter=None, create=False, primary_key=None, on_conflict=None,
        lower_case=False, sql=None, timeout=None,
    )  # fmt: skip
    if match["way"].lower() == "from":
        _load(db, options, match)
    else:
        options.sql = (
            match["query"][1:-1] if match["query"] else f"select {match['columns'] or '*'} from {match['table']}"
        )
        export_file(db, options)


def _load(db: Client, options: argparse.Namespace, match: re.Match[str]) -> None:
    if match["query"]:
        raise ValueError(_USAGE)
    if match["columns"] and "header" not in match["more"].lower():
        options.columns = match["columns"]
    if import_file(db, options) != 0:
        raise ResultError("The file was not imported.")
