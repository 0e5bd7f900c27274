"""Runs the `plainsql-server` command: `python -m plainsql_server`."""

from plainsql_server.cli import main

main()
