"""The group of tenants' roles, and which powerful roles the rules for logins admit beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg import errors

from plainsql_server.engine.admin import login_rules, provisioning, tenants_group
from plainsql_server.engine.admin.activity import watching
from plainsql_server.engine.admin.cell import STREAM_ROLE, TENANTS_ROLE
from plainsql_server.engine.pool.health import PROBE_ROLE
from server.tests.control_plane.cell_state import yes
from server.tests.postgres import SUPERUSER, Postgres, running_postgres

POWERFUL = {"boss": "SUPERUSER", "maker": "CREATEROLE", "copier": "REPLICATION", "seer": "BYPASSRLS"}


@pytest.fixture(scope="module", params=[15, 18])
def cell(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    with running_postgres(major=request.param) as running:
        with running.connect() as admin:
            for role, attribute in POWERFUL.items():
                admin.execute(f"CREATE ROLE {role} LOGIN {attribute}")
            admin.execute("CREATE ROLE plain LOGIN; CREATE ROLE team NOLOGIN; CREATE ROLE asleep SUPERUSER NOLOGIN")
            admin.execute("GRANT team TO maker")
        yield running


async def _names(cell: Postgres) -> provisioning.EngineNames:
    await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
    names = provisioning.new_names()
    await provisioning.create_database(cell.conninfo, SUPERUSER, names, "s", yes)
    return names


def _members(cell: Postgres) -> set[str]:
    asked = "SELECT member::regrole::text FROM pg_auth_members WHERE roleid = %s::regrole AND NOT admin_option"
    with cell.connect() as admin:
        return {name for (name,) in admin.execute(asked, (TENANTS_ROLE,))}


async def test_every_role_that_a_data_plane_uses_is_in_the_group(cell: Postgres) -> None:
    names = await _names(cell)
    assert {names.owner_role, names.reader_role, PROBE_ROLE} <= _members(cell)


async def test_roles_of_older_versions_get_into_the_group(cell: Postgres) -> None:
    names = await _names(cell)
    with cell.connect() as admin:
        admin.execute(f"DROP OWNED BY {TENANTS_ROLE}; DROP ROLE {TENANTS_ROLE}")
        admin.execute(f"ALTER ROLE {names.owner_role} INHERIT")
    # A cell that was not upgraded can still create databases.
    later = provisioning.new_names()
    await provisioning.create_database(cell.conninfo, SUPERUSER, later, "s", yes)
    async with watching(cell.conninfo, SUPERUSER) as connection:
        assert names.owner_role in await tenants_group.missing(connection)
    for _ in range(2):
        await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
    async with watching(cell.conninfo, SUPERUSER) as connection:
        assert await tenants_group.missing(connection) == []
    with cell.connect() as admin:
        inherits = "SELECT rolinherit FROM pg_roles WHERE rolname = %s"
        assert admin.execute(inherits, (names.owner_role,)).fetchone() == (False,)


async def test_the_members_are_read_once_however_many_roles_there_are(cell: Postgres) -> None:
    """On a cell with 10,000 databases, comparing each role with each member took longer than `doctor` waits."""
    await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
    with cell.connect() as admin:
        plan = admin.execute(f"EXPLAIN {tenants_group._MISSING}", (PROBE_ROLE, TENANTS_ROLE)).fetchall()
    assert any("hashed SubPlan" in line for (line,) in plan), plan


async def test_the_group_gives_a_tenant_nothing(cell: Postgres) -> None:
    names = await _names(cell)
    with cell.connect() as admin:
        rights = "SELECT rolcanlogin, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls"
        assert admin.execute(f"{rights} FROM pg_roles WHERE rolname = %s", (TENANTS_ROLE,)).fetchone() == (False,) * 7
        dependents = (
            "SELECT count(*) FROM pg_shdepend WHERE refobjid = %s::regrole AND classid <> 'pg_auth_members'::regclass"
        )
        assert admin.execute(dependents, (TENANTS_ROLE,)).fetchone() == (0,)
    refused = [
        f"GRANT {TENANTS_ROLE} TO {names.reader_role}", f"GRANT {TENANTS_ROLE} TO boss", f"DROP ROLE {TENANTS_ROLE}",
        f"GRANT SELECT ON t TO {TENANTS_ROLE}", f"ALTER ROLE {TENANTS_ROLE} LOGIN",
        f"GRANT {names.owner_role} TO {TENANTS_ROLE}",
    ]  # fmt: skip
    with cell.connect(names.owner_role, names.database) as tenant:
        tenant.execute("CREATE TABLE t ()")
        if tenant.info.server_version < 160_000:
            # There, a member can become the group, and then has less than before.
            tenant.execute(f"SET ROLE {TENANTS_ROLE}")
            for statement in (*refused, "SELECT FROM t", "CREATE TABLE u ()", "CREATE SCHEMA s"):
                with pytest.raises((errors.InsufficientPrivilege, errors.InvalidGrantOperation)):
                    tenant.execute(statement)
            tenant.execute("RESET ROLE")
        else:
            refused.append(f"SET ROLE {TENANTS_ROLE}")
        for statement in refused:
            with pytest.raises((errors.InsufficientPrivilege, errors.InvalidGrantOperation)):
                tenant.execute(statement)


async def test_public_may_create_nothing_where_postgresql_14_let_it(cell: Postgres) -> None:
    with cell.connect() as admin:
        admin.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        await provisioning.prepare_cell(cell.conninfo, SUPERUSER)
        assert admin.execute("SELECT has_schema_privilege('plain', 'public', 'CREATE')").fetchone() == (False,)


# A rule, and the powerful roles that it admits. The admin role is always among those that `all` admits.
RULES = [
    ("host all all 10.0.0.0/8 trust", {*POWERFUL, SUPERUSER}),
    ("host all +plainsql_tenants 10.0.0.0/8 trust", set()),
    ("host all +team 10.0.0.0/8 trust", {"maker"}),
    ("host all plain,boss,asleep 10.0.0.0/8 trust", {"boss"}),
    ("host replication all 10.0.0.0/8 trust", {"boss", "copier", SUPERUSER}),
    ("host samerole all 10.0.0.0/8 trust", {"maker"}),
    ("host all all 10.0.0.0/8 cert", set()),
    ("host all all 10.0.0.0/8 scram-sha-256", set()),
    ("local all all trust", set()),
]


@contextmanager
def _with_rules(cell: Postgres, *rules: str) -> Iterator[Path]:
    """Yields the file. The view reads it, so nothing has to be reloaded."""
    file = Path(cell.socket_dir) / "data" / "pg_hba.conf"
    before = file.read_text()
    file.write_text("\n".join(["local all all trust", *rules, ""]))
    try:
        yield file
    finally:
        file.write_text(before)


async def _admitted(cell: Postgres, *rules: str) -> set[str]:
    with _with_rules(cell, *rules):
        async with watching(cell.conninfo, SUPERUSER) as connection:
            return {role for each in await login_rules.admissions(connection) for role in each.roles}


@pytest.mark.parametrize(("rule", "admitted"), RULES)
async def test_powerful_roles_that_a_rule_admits_are_found(cell: Postgres, rule: str, admitted: set[str]) -> None:
    with cell.connect() as admin:
        admin.execute("CREATE DATABASE team")
    try:
        assert await _admitted(cell, rule) == admitted
    finally:
        with cell.connect() as admin:
            admin.execute("DROP DATABASE team")


async def test_a_rule_after_one_that_has_decided_admits_nobody_else(cell: Postgres) -> None:
    decided = [f"host all {role} 10.0.0.0/8 reject" for role in (*POWERFUL, SUPERUSER)]
    trusting = "host all all 10.1.0.0/16 trust"
    assert await _admitted(cell, *decided, trusting) == set()
    assert await _admitted(cell, *decided[1:], trusting) == {"boss"}
    # A narrower rule, or one for other databases, decides nothing about the rest.
    assert await _admitted(cell, "host all boss 10.1.2.0/24 reject", *decided[1:], trusting) == {"boss"}
    assert await _admitted(cell, "host postgres boss 10.0.0.0/8 reject", *decided[1:], trusting) == {"boss"}
    assert await _admitted(cell, "host all boss all reject", *decided[1:], trusting) == set()
    assert await _admitted(cell, "host all boss ::/0 reject", *decided[1:], trusting) == {"boss"}


async def test_regular_expressions_are_postgresqls_own(cell: Postgres) -> None:
    # Python compiles neither the character class nor the word boundary.
    rule = r'host all "/^[[:alpha:]]+ss\M" 10.0.0.0/8 trust'
    with cell.connect() as admin:
        has_expressions = admin.info.server_version >= 160_000
    assert await _admitted(cell, rule) == ({"boss"} if has_expressions else set())
    # PostgreSQL ignores a rule with an invalid expression, and so does doctor.
    invalid = 'host all "/((" 10.0.0.0/8 trust'
    assert await _admitted(cell, invalid) == set()


@pytest.mark.parametrize("is_kept_out", [True, False])
async def test_rules_of_an_included_file_have_its_place(cell: Postgres, is_kept_out: bool) -> None:
    """The number of a line is that in its own file."""
    own = [f"host replication {STREAM_ROLE} all scram-sha-256", f"host all,replication {STREAM_ROLE} all reject"]
    with cell.connect() as admin:
        includes = admin.info.server_version >= 160_000
        admin.execute(f"CREATE ROLE {STREAM_ROLE}")
    others = "include others.conf" if includes else "host all all all scram-sha-256"
    try:
        with _with_rules(cell, *([*own, others] if is_kept_out else [own[0], others, own[1]])) as file:
            file.with_name("others.conf").write_text("host all all all scram-sha-256\n")
            async with watching(cell.conninfo, SUPERUSER) as connection:
                found = await login_rules.receiver_rules(connection)
    finally:
        with cell.connect() as admin:
            admin.execute(f"DROP ROLE {STREAM_ROLE}")
    assert found == login_rules.ReceiverRules(has_certificate=False, is_kept_out=is_kept_out)
