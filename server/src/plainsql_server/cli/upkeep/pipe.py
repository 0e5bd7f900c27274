"""The option `--pipe`: programs that a backup passes through."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from plainsql_server.operations.upkeep.pipeline import Commands, parse_pipeline

F = TypeVar("F", bound=Callable[..., Any])


def pipe_option(text: str) -> Callable[[F], F]:
    """`--pipe 'zstd | age …'`; the command gets it as `commands`, a list that is empty by default."""
    return click.option("--pipe", "commands", metavar="COMMAND", default="", callback=_parsed, help=text)


def _parsed(_: click.Context, __: click.Parameter, value: str) -> Commands:
    if not value:
        return []
    try:
        return parse_pipeline(value)
    except ValueError as error:
        raise click.BadParameter(f"{str(error).rstrip('.')}.") from error
