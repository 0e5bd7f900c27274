"""Names of temporary schemas, in which the service runs probes and benchmarks in a tenant's database.

A name contains the time of creation. If a crash leaves a schema behind, the next request that creates one finds it by
its age and drops it. The names are reserved for the service.
"""

import secrets
import time

# A regular expression for Python and PostgreSQL. Version 0.61 called them scratch; those sort before all others, and
# so count as abandoned.
TEMPORARY_SCHEMA = "^plainsql_(scratch|temporary)_[0-9a-f]{8}_[0-9a-f]{16}$"
# No request uses a temporary schema for that long, whatever the tier: utility routes are limited to seconds.
_ABANDONED_AFTER_S = 600

# Removes at most ten at a time; only a crash leaves one behind.
_FIND_ABANDONED = f"""
    select nspname from pg_catalog.pg_namespace
    where nspname operator(pg_catalog.~) '{TEMPORARY_SCHEMA}' and nspname operator(pg_catalog.<) $1::pg_catalog.name
    limit 10
""".encode()


def new_schema_name() -> str:
    """A new name. It needs no quoting, and names sort by age."""
    return f"plainsql_temporary_{int(time.time()):08x}_{secrets.token_hex(8)}"


def find_abandoned() -> tuple[bytes, list[bytes | None]]:
    """The query, and its parameters, for temporary schemas that a crash left behind."""
    return _FIND_ABANDONED, [f"plainsql_temporary_{int(time.time()) - _ABANDONED_AFTER_S:08x}".encode()]


def create(name: str) -> bytes:
    return f"create schema {name}".encode()


def drop(name: str) -> bytes:
    return f"drop schema if exists {name} cascade".encode()
