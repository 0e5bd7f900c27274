"""The Python client of PlainSQL.

Owns the name and the version of the package, and nothing more yet: the client itself, its DB-API and the
`plainsql` command are still to come. Until then, any HTTP client will do. Refuses to import the server.
"""

VERSION = "0.61.0"
