"""POST /mcp: the Model Context Protocol, through which an agent uses a database with tools.

`route.py` is the handler. It loads the other modules at the first call, because they need the package `mcp`: it is an
extra, and takes a second and 30 MB. docs/decisions/0029-mcp.md has the reasons for the design.
"""
