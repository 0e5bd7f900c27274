"""Names of temporary schemas, in which the service tries things out in a customer's database.

Owns their names, which tell their age, so that one which a crash left behind is found and removed by the next who makes
one. What is in them is ours, and their names are reserved for that.
"""

import secrets
import time

# As a regular expression, which the engine takes as well.
SCRATCH_SCHEMA = "^plainsql_temporary_[0-9a-f]{8}_[0-9a-f]{16}$"
# No work in one lasts as long, whatever the tier: banner routes have seconds.
_ABANDONED_AFTER_S = 600

# How many are removed at once; only a crash leaves one.
_FIND_ABANDONED = f"""
    select nspname from pg_catalog.pg_namespace
    where nspname operator(pg_catalog.~) '{SCRATCH_SCHEMA}' and nspname operator(pg_catalog.<) $1::pg_catalog.name
    limit 10
""".encode()


def new_schema_name() -> str:
    """A fresh name. It needs no quotes, and sorts by age."""
    return f"plainsql_temporary_{int(time.time()):08x}_{secrets.token_hex(8)}"


def find_abandoned() -> tuple[bytes, list[bytes | None]]:
    """The question which schemas a crash left behind."""
    return _FIND_ABANDONED, [f"plainsql_temporary_{int(time.time()) - _ABANDONED_AFTER_S:08x}".encode()]


def create(name: str) -> bytes:
    return f"create schema {name}".encode()


def drop(name: str) -> bytes:
    return f"drop schema if exists {name} cascade".encode()
