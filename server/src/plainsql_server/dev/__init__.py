"""`plainsql-server dev`: runs the whole service on one machine, from one folder.

This package starts, watches and stops the parts. The planes are the real ones: it starts `plainsql-server data` and
`plainsql-server control` with real settings.
"""
