"""PlainSQL: SQL over plain HTTPS, on PostgreSQL."""

from plainsql_server.kernel import use_kernel

VERSION = "0.61.0"

# Must run before any compiled module is imported.
KERNEL = use_kernel()
