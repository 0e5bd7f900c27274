"""Runs the `plainsql` command: `python -m plainsql`."""

from plainsql.command import entry

entry()
