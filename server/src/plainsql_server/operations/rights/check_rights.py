"""Doctor's check of what the login in PLAINSQL_DIRECTORY_DSN may do.

A node that is taken over can do what its login can. So each plane should have a login with the rights of its role, and
the owner of the tables, who runs `migrate`, a login of its own.
"""

from collections.abc import AsyncIterator

import psycopg
from psycopg import AsyncConnection

from plainsql_server.directory.rights.checking import least_role, login
from plainsql_server.directory.rights.grants import Role
from plainsql_server.operations.findings import Finding, Target, good, warning

_CHECK = "rights"
_CONNECT_TIMEOUT_S = 3
_FIX = (
    f"Use {Role.DATA} on data plane machines, {Role.CONTROL} on control plane machines and {Role.OPERATOR} for your own"
    " commands, or logins that are members of these roles. Only `migrate`, `restore --directory` and an `upgrade` that"
    " changes the directory need the owner of the tables."
)


async def rights(target: Target) -> AsyncIterator[Finding]:
    """Check the rights of the directory's login. The check of the directory reports one that can't be reached."""
    try:
        connection = await AsyncConnection.connect(
            target.settings.directory_dsn, connect_timeout=_CONNECT_TIMEOUT_S, autocommit=True
        )
    except psycopg.Error:
        return
    async with connection:
        user = await login(connection)
        role = await least_role(connection)
    where = f"PLAINSQL_DIRECTORY_DSN logs in as {user.name}"
    if user.is_superuser:
        yield warning(_CHECK, f"{where}, a superuser.", _FIX)
    elif user.is_owner:
        yield warning(_CHECK, f"{where}, who owns the directory's tables.", _FIX)
    elif user.is_powerful:
        yield warning(
            _CHECK,
            f"{where}, who has CREATEROLE, REPLICATION or BYPASSRLS.",
            f"Run `ALTER ROLE {user.name} NOCREATEROLE NOREPLICATION NOBYPASSRLS` as a superuser.",
        )
    elif role is None:
        yield warning(
            _CHECK, f"{where}, who has more rights than any plane needs.", f"Run `plainsql-server migrate`. {_FIX}"
        )
    else:
        yield good(_CHECK, f"{where}, with no more rights than {role}.")
