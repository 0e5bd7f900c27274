"""`python -m plainsql_server` is `plainsql-server`."""

from plainsql_server.cli import main

main()
