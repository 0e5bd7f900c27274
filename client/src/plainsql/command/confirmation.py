"""Asks before something is deleted: on a terminal, the user types its name. Scripts pass `--yes`."""

import argparse
import sys

from plainsql.command.tables import visible
from plainsql.command.terminal import say


def confirm(options: argparse.Namespace, name: str, question: str) -> None:
    """Returns if the user confirms. Otherwise, raises ValueError, and nothing is done."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise ValueError(f"{question} Without a terminal, confirm it with --yes.")
    say(question, "bold")
    print(f"Type {visible(name)} to confirm: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise ValueError("The name doesn't match. Nothing was done.")
