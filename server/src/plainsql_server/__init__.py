"""PlainSQL: SQL over plain HTTPS, on PostgreSQL."""

from plainsql_server.kernel import use_kernel

VERSION = "0.61.0"

# Before any of its modules is imported.
KERNEL = use_kernel()
