"""The path of `plainsql-server`, which systemd needs in full."""

import sys
from pathlib import Path

import click

program_option = click.option("--program", metavar="PATH", help="Path of plainsql-server.  [default: this one]")


def own_program() -> str:
    """The path of this program, for a unit."""
    return str(Path(sys.executable).with_name("plainsql-server"))
