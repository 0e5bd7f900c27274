"""Sends results that don't fit the screen to the pager (`PLAINSQL_PAGER`, `PAGER` or less)."""

import shlex
import shutil
import subprocess
import sys
from io import StringIO

from plainsql.command.tables import width, write_result
from plainsql.result import Result
from plainsql.settings import pager


def write_paged(result: Result, output_format: str) -> None:
    """Prints a result, through the pager if it does not fit the screen."""
    text = StringIO()
    write_result(result, output_format, text)
    if sys.stdout.isatty() and _is_too_large(text.getvalue()) and (command := _pager()):
        subprocess.run(command, input=text.getvalue(), text=True, check=False)
    else:
        sys.stdout.write(text.getvalue())
        sys.stdout.flush()


def _is_too_large(text: str) -> bool:
    size = shutil.get_terminal_size()
    lines = text.splitlines()
    return len(lines) >= size.lines - 1 or any(width(line) > size.columns for line in lines)


def _pager() -> list[str] | None:
    command = shlex.split(pager())
    return command if command and shutil.which(command[0]) else None
