"""Creates the admin role of a cell on a new cluster.

    ensure_admin_role("host=/run/postgresql port=5432", "plainsql_admin", system_user="postgres")

It logs in on PostgreSQL's socket as the role that is named like the system's user, as a new cluster allows. On a
cluster that already has a cell's configuration, only the admin role itself can log in there, so that is tried next.
"""

import psycopg
from psycopg import sql

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.admin.cell import MAINTENANCE_DATABASE
from plainsql_server.engine.connection.sqlstate import engine_unavailable

_CONNECT_TIMEOUT_S = 5


def ensure_admin_role(conninfo: str, admin_role: str, *, system_user: str) -> bool:
    """Creates the admin role, a superuser that can log in. Returns False if it exists already.

    Raises RequestError if a role of this name has fewer privileges or can't be created, EngineError if it can't log in.
    """
    with _log_in(conninfo, system_user, admin_role) as connection:
        found = connection.execute(
            "SELECT rolsuper AND rolcanlogin FROM pg_roles WHERE rolname = %s", (admin_role,)
        ).fetchone()
        if found is None:
            _create(connection, admin_role)
        elif not found[0]:
            raise RequestError(
                "admin_role_too_weak", f"The role {admin_role!r} exists, but is not a superuser that can log in.",
                hint="Choose another name for the admin role, or drop this role.",
            )  # fmt: skip
    return found is None


def _create(connection: psycopg.Connection, admin_role: str) -> None:
    try:
        connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN").format(sql.Identifier(admin_role)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise RequestError(
            "admin_role_too_weak", f"The role {connection.info.user!r} isn't a superuser, so it can't create one.",
            hint="Run this as the system user that owns the cluster, usually `postgres`.",
        ) from error  # fmt: skip


def _log_in(conninfo: str, *roles: str) -> psycopg.Connection:
    reasons = []
    for role in roles:
        try:
            return psycopg.connect(
                conninfo, user=role, dbname=MAINTENANCE_DATABASE, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
            )
        except psycopg.OperationalError as error:
            reasons.append(f"{role!r}: {error}")
    raise engine_unavailable("Can't log in as " + "; as ".join(reasons))
