"""Messages on standard error, coloured only on a terminal and only if NO_COLOR is not set."""

import sys
from typing import TextIO

from plainsql.command.tables import visible
from plainsql.settings import colours_wanted

_CODES = {"red": "31", "green": "32", "blue": "34", "dim": "2", "bold": "1"}


def paint(colour: str, text: str, stream: TextIO | None = None) -> str:
    """The text in a colour if standard error (or the given stream) is a terminal."""
    if not (stream or sys.stderr).isatty() or not colours_wanted():
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def say(text: str, colour: str = "") -> None:
    """Prints a message to standard error, without control characters; standard output is for data."""
    shown = visible(text, keep="\n")
    print(paint(colour, shown) if colour else shown, file=sys.stderr)
