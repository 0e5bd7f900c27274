"""`python -m plainsql`: the command."""

from plainsql.command import entry

entry()
