"""A cell with a standby: what `status` shows of it, and what `doctor` says of standbys and of slots without one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage
from server.tests.postgres import SUPERUSER, Postgres, run_as_postgres, running_postgres
from server.tests.processes import wait_for

_BIN = Path("/usr/lib/postgresql/15/bin")
_PORT = 5433
_WAIT_S = 30


@contextmanager
def standby_of(primary: Postgres) -> Iterator[None]:
    """A standby called `second`, beside the primary, for the length of the block."""
    folder = Path(primary.socket_dir)
    with (folder / "data" / "pg_hba.conf").open("a") as rules:
        rules.write("local replication all trust\n")
    with primary.connect() as admin:
        admin.execute("select pg_reload_conf()")
    source = f"host={primary.socket_dir} user={SUPERUSER} application_name=second"
    data = folder / "second"
    run_as_postgres(_BIN / "pg_basebackup", "-D", data, "-R", "-c", "fast", "--no-sync", "-d", source)
    pg_ctl = (_BIN / "pg_ctl", "-D", data, "-w")
    run_as_postgres(*pg_ctl, "-l", folder / "second.log", "-o", f"-p {_PORT}", "start")
    try:
        yield
    finally:
        run_as_postgres(*pg_ctl, "-m", "immediate", "stop")


@pytest.fixture(scope="module")
def replicated() -> Iterator[Stage]:
    with running_postgres() as primary, standby_of(primary):
        yield Stage.made(primary)


def test_status_shows_each_standby_and_how_far_it_is_behind(replicated: Stage) -> None:
    def replicas() -> list[dict[str, object]]:
        (cell,) = json.loads(replicated.run("status", "--json").stdout)["cells"]
        found: list[dict[str, object]] = cell["view"]["replicas"]
        return found

    expected = {"name": "second", "state": "streaming", "sync_state": "async", "behind_bytes": 0}
    wait_for(lambda: replicas() == [expected], _WAIT_S, lambda: str(replicas()))
    shown = replicated.run("status").stdout.splitlines()
    heading = next(at for at, line in enumerate(shown) if line.startswith("CELL   SERVER"))
    assert shown[heading + 1].split()[2:] == ["leader", "-", "-"]
    assert shown[heading + 2].split() == ["local", "second", "streaming", "async", "0", "B"]


def test_a_standby_of_the_directory_is_rejected_as_directory(replicated: Stage) -> None:
    with replicated.postgres.connect() as primary:
        row = primary.execute("select pg_current_wal_lsn()").fetchone()
    standby = replace(replicated, dsn=replicated.dsn.replace("port=5432", f"port={_PORT}"))

    def has_caught_up() -> bool:
        ((it,),) = standby.ask("select pg_last_wal_replay_lsn() >= %s::pg_lsn", row[0] if row else "")
        return bool(it)

    wait_for(has_caught_up, _WAIT_S, lambda: "the standby is behind")
    assert_found(doctor(standby), "The directory is a standby", "target_session_attrs=primary")


def set_standbys(stage: Stage, names: str) -> None:
    with stage.postgres.connect() as primary:
        primary.execute(f"alter system set synchronous_standby_names = '{names}'".encode())
        primary.execute("select pg_reload_conf()")
    wait_for(lambda: stage.ask("show synchronous_standby_names") == [(names,)], _WAIT_S, lambda: "no reload")


def test_servers_behind_one_address_are_found(replicated: Stage) -> None:
    hidden = "its connection string has one host"
    assert not [each for each in doctor(replicated) if hidden in each["found"]]
    set_standbys(replicated, "second")
    try:
        found = doctor(replicated)
    finally:
        set_standbys(replicated, "")
    assert_found(found, hidden, "plainsql-server cell set --conninfo", "warning")


def test_an_unused_replication_slot_is_reported(replicated: Stage) -> None:
    with replicated.postgres.connect() as primary:
        primary.execute("select pg_create_physical_replication_slot('unread', true)")
        try:
            found = doctor(replicated)
        finally:
            primary.execute("select pg_drop_replication_slot('unread')")
    assert_found(found, "The replication slot unread has no reader", "pg_drop_replication_slot('unread')", "warning")
