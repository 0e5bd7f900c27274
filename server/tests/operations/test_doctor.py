"""`plainsql-server doctor` on set-ups that are broken on purpose: each is found, and the fix is named.

Most are real breakages of a real part, put right again at the end of the test.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from plainsql_server.core.errors import EngineError
from plainsql_server.dev.ports import free_port
from plainsql_server.directory.rights.grants import Role
from plainsql_server.engine.admin import activity, provisioning
from plainsql_server.engine.admin.cell import TEMPLATE
from plainsql_server.operations.check_directory import fix_for
from plainsql_server.operations.doctor import examine
from plainsql_server.operations.files.cell import CellConfig
from plainsql_server.operations.findings import Grade, Target
from plainsql_server.settings import Settings, read_settings
from server.tests.alias import running_alias
from server.tests.customers import prepare_again
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage
from server.tests.postgres import SUPERUSER, Postgres, as_role, running_postgres
from server.tests.processes import wait_for
from server.tests.programs import libfaketime
from server.tests.redis_server import running_redis
from server.tests.sealing import key_settings
from server.tests.service import Service, running_service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service("--no-tls") as running:
        yield running


def settings_of(service: Service) -> dict[str, str]:
    postgres = service.dev["postgres"]
    dsn = f"host={postgres['socket']} port={postgres['port']} user={postgres['superuser']} dbname=plainsql_directory"
    ports = {name: str(service.dev[f"{name}_url"]).rpartition(":")[2] for name in ("data", "control")}
    return {
        "PLAINSQL_DIRECTORY_DSN": dsn, "PLAINSQL_UPKEEP": "off", **key_settings(dsn),
        "PLAINSQL_DATA_URL": service.data_url, "PLAINSQL_CONTROL_URL": service.control_url,
        "PLAINSQL_ALIAS_URL": str(service.dev["alias_url"] or ""),
        "PLAINSQL_DATA_PORT": ports["data"], "PLAINSQL_CONTROL_PORT": ports["control"],
    }  # fmt: skip


def well(service: Service) -> Stage:
    settings = settings_of(service)
    return Stage(Postgres(service.dev["postgres"]["socket"]), settings["PLAINSQL_DIRECTORY_DSN"], settings)


def test_a_healthy_service_passes_every_check(service: Service) -> None:
    ended = well(service).run("doctor", "--disk-free-percent", "0")
    assert "XX" not in ended.stdout
    assert " 0 broken." in ended.stderr
    for check in ("directory", "cell dev", "planes", "alias", "ports", "programs"):
        assert any(line.split("  ")[1].strip() == check for line in ended.stdout.splitlines() if line[:2] == "ok"), (
            check
        )


# Postgres ------------------------------------------------------------------------------------------------------------


@contextmanager
def changed(stage: Stage, *statements: str, back: list[str]) -> Iterator[None]:
    with stage.postgres.connect() as admin:
        for statement in statements:
            admin.execute(statement)
    try:
        yield
    finally:
        with stage.postgres.connect() as admin:
            for statement in back:
                admin.execute(statement)


def test_an_unavailable_directory_is_reported(stage: Stage, tmp_path: Path) -> None:
    found = doctor(replace(stage, dsn=f"host={tmp_path} user=x dbname=y"))
    assert_found(found, "The directory cannot be reached", "Start PostgreSQL")


def test_invalid_settings_are_reported(stage: Stage) -> None:
    found = doctor(stage, data_port="many")
    assert_found(found, "PLAINSQL_DATA_PORT", "plainsql-server settings")


# As `plainsql-server cell files` writes them: customers' roles for who has a certificate, others by their own.
CERTIFIED = ["hostssl all +plainsql_tenants 10.1.0.0/16 trust clientcert=verify-ca", "hostssl all all 10.2.0.0/16 cert"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """A cluster that asks for passwords, trusts the network, and that tests may restart in their minds only."""
    with running_postgres() as running:
        with running.connect() as admin:
            admin.execute("create role careful login superuser password 'right'")
            admin.execute("create role shut login")
            admin.execute("create role crowded login connection limit 0")
            admin.execute("create database closed allow_connections false")
        hba = Path(running.socket_dir) / "data" / "pg_hba.conf"
        rules = ["local all careful scram-sha-256", "local all shut reject", "local all all trust"]
        hba.write_text("\n".join([*rules, "host all all 10.0.0.0/8 trust", *CERTIFIED, ""]))
        with running.connect() as admin:
            admin.execute("select pg_reload_conf()")
        yield running


@pytest.mark.parametrize(
    ("dsn", "fix"),
    [
        ("user=careful password=wrong dbname=postgres", "Correct the password"),
        ("user=shut dbname=postgres", "pg_hba.conf"),
        ("user=nobody_here dbname=postgres", "Create the role"),
        (f"user={SUPERUSER} dbname=nothing_here", "createdb"),
        ("user=crowded dbname=postgres", "Close unneeded connections"),
        (f"user={SUPERUSER} dbname=closed", "ALLOW_CONNECTIONS true"),
    ],
)
def test_a_rejected_login_to_the_directory_is_reported(guarded: Postgres, dsn: str, fix: str) -> None:
    found = doctor(Stage(guarded, f"{guarded.conninfo} {dsn}"))
    assert_found(found, "The directory cannot be reached", fix)


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("FATAL:  the database system is starting up", "Wait"),
        ("FATAL:  the database system is not yet accepting connections", "Wait"),
        ("FATAL:  the database system is in recovery mode", "Wait"),
        ("FATAL:  the database system is shutting down", "Start PostgreSQL again"),
        ("FATAL:  sorry, too many clients already", "Close unneeded connections"),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", "Close unneeded"),
        ("FATAL:  remaining connection slots are reserved for non-replication superuser connections", "Close unneeded"),
        ('connection to server at "database.role.example", port 5432 failed: Connection refused', "Start PostgreSQL"),
        ('could not translate host name "too many" to address: Name or service not known', "correct host and port"),
        ('private key file "/k" has group or world access', "sslkey"),
        ('FATAL:  permission denied for database "x"', "GRANT CONNECT"),
    ],
)
def test_each_kind_of_connection_failure_has_its_own_fix(message: str, fix: str) -> None:
    """PostgreSQL's own words, of states that are over before a test has seen them, and names that mean nothing."""
    assert fix in fix_for(message, "PLAINSQL_DIRECTORY_DSN")


def test_a_network_with_trust_authentication_is_reported(guarded: Postgres) -> None:
    stage = Stage.made(guarded)
    found = doctor(stage)
    assert_found(found, "trusts every network client", "cert")
    (found_here,) = [each["found"] for each in found if "trusts every" in each["found"]]
    assert "10.0.0.0" in found_here


def test_powerful_roles_that_are_admitted_on_trust_and_roles_outside_the_group_are_reported(guarded: Postgres) -> None:
    stage = Stage.made(guarded)
    found = doctor(stage)
    assert_found(
        found, "pg_hba.conf admits careful, plainsql_admin on trust (line 4: host all all", "+plainsql_tenants"
    )
    assert not [each for each in found if "not in the group" in each["found"]]
    with guarded.connect() as admin:
        admin.execute("revoke plainsql_tenants from plainsql_probe")
    assert_found(doctor(stage), "1 roles of customers are not in the group", "plainsql-server upgrade")
    assert "add 1 roles to the group" in stage.run("upgrade", "--dry-run").stdout
    stage.run("upgrade")
    assert not [each for each in doctor(stage) if "not in the group" in each["found"]]


def test_a_cell_that_requires_a_password_is_reported(guarded: Postgres) -> None:
    stage = Stage.made(guarded)
    stage.ask("update cells set admin_role = 'careful'")
    assert_found(doctor(stage), "The cell cannot be reached as careful", "plainsql-server cell files")


def test_no_transaction_can_span_databases_on_a_cell() -> None:
    def config(root: Path) -> CellConfig:
        return CellConfig(SUPERUSER, str(root), others={"max_prepared_transactions": "0"})

    with running_postgres(config) as postgres:
        found = doctor(Stage.made(postgres))
    assert_found(found, "max_prepared_transactions is 0", "Set it to 64", "warning")


async def test_a_cell_that_accepts_connections_but_never_answers_becomes_unavailable(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_ANSWER_TIMEOUT_S", 0.3)
    with pytest.raises(EngineError) as raised:
        async with activity.watching(stage.postgres.conninfo, SUPERUSER) as connection:
            await connection.execute("select pg_sleep(20)")
    assert "did not answer within 0.3 s" in str(raised.value.internal_context)


async def test_the_size_of_a_cell_is_unknown_if_it_takes_too_long(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with activity.watching(stage.postgres.conninfo, SUPERUSER) as connection:
        assert (await activity.size_bytes(connection) or 0) > 1_000_000
        monkeypatch.setattr(activity, "_SIZE_TIMEOUT_S", 0.05)
        monkeypatch.setattr(activity, "_SIZE", "SELECT pg_sleep(20) AS size_bytes")
        assert await activity.size_bytes(connection) is None
        # Everything else is still known.
        assert (await activity.view(connection)).max_connections > 0


def test_logins_to_the_directory_with_more_rights_than_needed_are_reported(stage: Stage) -> None:
    assert_found(doctor(stage), "logs in as plainsql_admin, a superuser", "plainsql_data", "warning")
    for role in Role:
        found = [each for each in doctor(replace(stage, dsn=as_role(stage.dsn, role))) if each["check"] == "rights"]
        assert [(each["grade"], f"no more rights than {role}." in each["found"]) for each in found] == [("good", True)]
    with psycopg.connect(stage.dsn, autocommit=True) as owner:
        owner.execute(f"grant truncate on usage to {Role.DATA}")
    granted = replace(stage, dsn=as_role(stage.dsn, Role.DATA))
    assert_found(doctor(granted), "more rights than any plane needs", "plainsql-server migrate", "warning")


def test_an_unmigrated_directory_is_reported(stage: Stage) -> None:
    empty = replace(stage, dsn=stage.postgres.fresh_database())
    assert_found(doctor(empty), "not migrated: 0001", "plainsql-server migrate")
    stage.ask("update alembic_version set version_num = '0003'")
    assert_found(doctor(stage), "not migrated: 0004", "plainsql-server migrate")
    stage.ask("update alembic_version set version_num = '9999'")
    assert_found(doctor(stage), "newer version", "Run that version")


def test_an_unreachable_cell_is_reported(stage: Stage) -> None:
    stage.ask("update cells set conninfo = 'host=/nowhere'")
    assert_found(doctor(stage), "The cell cannot be reached", "Start PostgreSQL")
    # What it tells to do can be done.
    stage.run("cell", "set", "local", "--conninfo", stage.postgres.conninfo)
    assert not [each for each in doctor(stage) if "cannot be reached" in each["found"]]


def test_a_missing_cell_is_reported(stage: Stage) -> None:
    stage.ask("update cells set state = 'draining'")
    assert_found(doctor(stage), "No cell accepts new databases", "cell add")


async def test_a_cell_with_too_old_a_postgresql_is_reported(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(provisioning.VERSION_FLOOR, 15, 99)
    found = [each async for each in examine(Target(read_settings(stage.environment())))]
    found_here = [each for each in found if "known vulnerabilities; 15.99" in each.found]
    assert [each.grade for each in found_here] == [Grade.BROKEN]
    assert "newest minor release" in str(found_here[0].fix)


def test_a_missing_or_changed_template_is_repaired_by_upgrade(stage: Stage) -> None:
    opened = f"alter database {TEMPLATE} allow_connections true"
    with changed(stage, opened, back=[opened.replace("true", "false")]):
        assert_found(doctor(stage), "template database plainsql_template was changed", "plainsql-server upgrade")
    with stage.postgres.connect() as admin:
        admin.execute(f"alter database {TEMPLATE} is_template false")
        prepare_again()
        admin.execute(f"drop database {TEMPLATE}")
        admin.execute("grant connect on database template1 to public")
    found = doctor(stage)
    assert_found(found, "template database plainsql_template is missing", "plainsql-server upgrade")
    assert_found(found, "PUBLIC may connect to template1", "plainsql-server upgrade")
    planned = json.loads(stage.run("upgrade", "--dry-run", "--json").stdout)
    assert {each["what"].split()[0] for each in planned} == {"create", "revoke"}
    assert_found(doctor(stage), "template database plainsql_template is missing", "plainsql-server upgrade")
    stage.run("upgrade")
    noted = stage.ask("select actor_kind, details -> 'changes' from audit where action = 'cell.upgrade'")
    assert noted == [("operator", [each["what"] for each in planned])]
    assert not [each for each in doctor(stage) if "template" in each["found"]]
    assert "Nothing to change" in stage.run("upgrade", "--dry-run").stderr


def test_a_cell_that_is_too_small_unsafe_or_verbose_is_reported(stage: Stage) -> None:
    """The test's own cluster has 260 connections and no fsync, and here PostgreSQL's own logging."""
    reload, name = "select pg_reload_conf()", "log_min_error_statement"
    with changed(stage, f"alter system set {name} = 'error'", reload, back=[f"alter system reset {name}", reload]):
        found = doctor(stage, workers="8", cell_max_connections="64")
    assert_found(found, "8 data plane processes may need 528", "PLAINSQL_CELL_MAX_CONNECTIONS to 29")
    assert_found(found, "fsync is off", "fsync = on")
    assert_found(found, "SQL is written to the cell's log", "log_min_error_statement = panic", "warning")


def test_a_cell_whose_connections_are_too_few_for_the_processes_is_reported(stage: Stage) -> None:
    assert_found(doctor(stage, workers="6"), "each of 6 processes may have 33.", "", "good")
    found = doctor(stage, workers="7")
    assert_found(found, "each of 7 processes may have only 28.", "Set max_connections to 270", "warning")


def test_a_missing_or_blocked_health_check_role_is_reported(stage: Stage) -> None:
    with changed(stage, "alter role plainsql_probe nologin", back=["alter role plainsql_probe login"]):
        assert_found(doctor(stage), "Customers' roles can't log in", "ALTER ROLE … LOGIN")
    renamed = "alter role plainsql_probe rename to somebody"
    with changed(stage, renamed, back=["alter role somebody rename to plainsql_probe"]):
        assert_found(doctor(stage), "role plainsql_probe is missing", "plainsql-server upgrade")


def test_lost_closed_and_unknown_databases_are_reported(stage: Stage) -> None:
    engine_name, *_ = stage.names()
    closed = f"alter database {engine_name} allow_connections false"
    with changed(stage, closed, back=[closed.replace("false", "true")]):
        assert_found(doctor(stage), f"{engine_name} refuses all connections", "ALLOW_CONNECTIONS true")
    stage.ask("update databases set engine_name = 'd_000000000000000000000000'")
    found = doctor(stage)
    assert_found(found, "d_000000000000000000000000 is missing", "plainsql-server restore")
    assert_found(found, "The directory has no record of", "before you drop", "warning")


def test_a_nearly_full_disk_is_reported(stage: Stage) -> None:
    assert_found(doctor(stage, "--disk-free-percent", "100"), "% free", "Enlarge the disk", _disk_grade(stage.postgres))


def _disk_grade(postgres: Postgres) -> str:
    usage = shutil.disk_usage(postgres.socket_dir)
    return "broken" if usage.free / usage.total < 0.5 else "warning"


def test_a_clock_difference_is_reported(stage: Stage) -> None:
    faked = {"LD_PRELOAD": libfaketime("libfaketime.so.1"), "FAKETIME": "+90s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    ill = replace(stage, settings=faked)
    found = json.loads(ill.run("doctor", "--json", exit_code=1).stdout)
    assert_found([each for each in found if each["check"] == "directory"], "differ by 90 s", "chrony")


# The edge ------------------------------------------------------------------------------------------------------------


def test_an_unavailable_or_evicting_redis_is_reported(stage: Stage, tmp_path: Path) -> None:
    assert_found(doctor(stage, redis_url=f"unix://{tmp_path}/none"), "Redis does not respond", "PLAINSQL_REDIS_URL")
    with running_redis() as redis:
        redis.ask("CONFIG", "SET", "maxmemory", "100mb")
        redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        assert_found(doctor(stage, redis_url=redis.url), "policy is allkeys-lru", "noeviction", "warning")
    assert_found(doctor(stage, workers="2"), "without Redis", "PLAINSQL_REDIS_URL", "warning")


def test_a_port_in_use_is_reported(stage: Stage) -> None:
    with socket.socket() as outsider:
        outsider.bind(("127.0.0.1", 0))
        outsider.listen()
        port = outsider.getsockname()[1]
        found = doctor(stage, data_port=str(port))
    assert_found(found, f"Another program listens on 127.0.0.1:{port}", "PLAINSQL_DATA_PORT")


def test_missing_planes_and_foreign_services_are_reported(service: Service, stage: Stage) -> None:
    free = free_port()
    found = doctor(stage, data_url=f"http://127.0.0.1:{free}", control_url="http://127.0.0.1:1")
    assert_found(found, "The data plane does not respond", "plainsql-server data", "warning")
    with running_alias(free) as nginx:
        found = doctor(stage, data_url=f"http://127.0.0.1:{nginx}")
    assert_found(found, "is not a PlainSQL data plane", "PLAINSQL_DATA_URL")


def test_an_alias_that_points_elsewhere_is_reported(service: Service, stage: Stage) -> None:
    """Its upstream is another service's data plane, and its redirects go to another control plane."""
    upstream = int(service.data_url.rpartition(":")[2])
    with running_alias(upstream) as nginx:
        alias_url = f"http://127.0.0.1:{nginx}"
        found = doctor(stage, alias_url=alias_url, data_url="http://data.example")
        assert_found(found, f"The alias points to {service.data_url}", "plainsql-server alias")
        found = doctor(stage, alias_url=alias_url, data_url=service.data_url, control_url=service.control_url)
        assert_found(found, "redirects control requests to https://control.example", "plainsql-server alias")
    found = doctor(stage, alias_url="http://127.0.0.1:1")
    assert_found(found, "The alias does not respond", "nginx")


def test_an_unhealthy_plane_is_reported(service: Service) -> None:
    """Its cell is moved away under it, and back."""
    stage = well(service)
    ((conninfo,),) = stage.ask("select conninfo from cells")
    stage.ask("update cells set conninfo = 'host=/nowhere'")
    try:
        # It remembers for a moment that it was well.
        health = f"{service.data_url}/health"
        wait_for(lambda: service.http.get(health).json()["status"] != "ok", 60, lambda: "it stays healthy")
        found = doctor(stage)
    finally:
        stage.ask("update cells set conninfo = %s", conninfo)
    assert_found(found, "The data plane reports: engine", "log")


def test_too_low_a_limit_of_open_files_is_reported(stage: Stage) -> None:
    command = f"ulimit -n 256; exec {sys.executable} -m plainsql_server doctor --json"
    ended = subprocess.run(
        ["/bin/sh", "-c", command], env=stage.environment(), capture_output=True, text=True, check=False
    )
    assert_found(json.loads(ended.stdout), "may open 256 files", "LimitNOFILE=4096", "warning")


def test_every_finding_that_is_not_good_has_a_fix(stage: Stage) -> None:
    found = doctor(stage, workers="9")
    assert all(each["fix"] for each in found if each["grade"] != "good")
    assert all(each["found"] and os.linesep not in each["found"] for each in found)
    assert isinstance(read_settings(stage.environment()), Settings)
