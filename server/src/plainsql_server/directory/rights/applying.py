"""Creates the directory's roles and gives them the rights in `grants.py`, as the role that runs `migrate`.

Runs in the transaction of the migration. What a role had beyond its list is revoked.
"""

from collections.abc import Iterator

from plainsql_server.directory.rights.grants import FUNCTIONS, SEQUENCES, TABLES, Role

# Two migrations of two directories in one cluster may both find no role. A role that exists is left as it is: it may
# have a password.
_CREATE_ROLE = """
    DO $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
            CREATE ROLE {role} LOGIN;
        END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$
"""
# The name of the database is known to the server alone.
_CONNECT = """
    DO $$ BEGIN
        EXECUTE 'GRANT CONNECT ON DATABASE ' || quote_ident(current_database()) || ' TO {roles}';
    END $$
"""


def statements() -> Iterator[str]:
    """The statements, in order."""
    roles = ", ".join(Role)
    for role in Role:
        yield _CREATE_ROLE.format(role=role)
    # A directory that was once in PostgreSQL 14 lets everyone create objects.
    yield "REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    # By name: the schema may also hold extensions, which belong to another role.
    for kind, names in (("TABLE", TABLES), ("SEQUENCE", SEQUENCES), ("FUNCTION", FUNCTIONS)):
        yield from (f"REVOKE ALL ON {kind} {name} FROM PUBLIC, {roles}" for name in names)
    yield _CONNECT.format(roles=roles)
    yield f"GRANT USAGE ON SCHEMA public TO {roles}"
    for kind, granted in (("TABLE", TABLES), ("SEQUENCE", SEQUENCES)):
        for name, by_role in granted.items():
            yield from (f"GRANT {privileges} ON {kind} {name} TO {role}" for role, privileges in by_role.items())
    for function, allowed in FUNCTIONS.items():
        yield from (f"GRANT EXECUTE ON FUNCTION {function} TO {role}" for role in sorted(allowed))
