"""`plainsql-server directory reconcile`: what is prepared on cells when the directory went back, and how it ends."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from plainsql_server.control_plane import databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.execution.spanning import gid_of, new_gid
from server.tests.control_plane.records import store_record
from server.tests.operations.stage import Stage


def prepare(stage: Stage, gid: str, *parts: int) -> None:
    for number in parts:
        with stage.admin() as admin:
            admin.execute("begin")
            admin.execute(f"create table made_{number} ()")
            admin.execute(f"prepare transaction '{gid_of(gid, number)}'".encode())


def reconciled(stage: Stage, exit_code: int = 0) -> list[dict[str, Any]]:
    ended = stage.run_as_operator("directory", "reconcile", "--json", exit_code=exit_code)
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    with stage.admin() as admin:
        for each in found:
            admin.execute(f"rollback prepared '{each['gid']}'".encode())
    return found


async def record(stage: Stage, gid: str, state: str) -> None:
    async with Directory.open(stage.dsn) as directory:
        owner = await organizations.get(directory, "acme")
        await store_record(directory, await databases.get_named(directory, owner.id, "main"), gid, state)


@pytest.mark.parametrize(
    ("state", "parts", "ending"),
    [
        ("committed", (1,), "commit"), ("aborted", (1,), "rollback"),
        ("open", (0, 1), "rollback"), ("open", (1,), "uncertain"),
        (None, (0, 1), "rollback"), (None, (0,), "uncertain"),
    ],
)  # fmt: skip
async def test_a_transaction_ends_as_decided_and_is_uncertain_only_if_a_part_is_missing(
    stage: Stage, state: str | None, parts: tuple[int, ...], ending: str
) -> None:
    gid = new_gid(2)
    prepare(stage, gid, *parts)
    if state is not None:
        await record(stage, gid, state)
    found = reconciled(stage, exit_code=int(ending == "uncertain"))
    assert [(each["gid"], each["ending"]) for each in found] == [(gid_of(gid, number), ending) for number in parts]
    assert {(each["cell"], each["database"], each["parts"]) for each in found} == {
        ("local", stage.names()[0], f"{len(parts)} of 2")
    }


def test_a_transaction_of_a_version_that_did_not_tell_the_number_of_parts_is_uncertain(stage: Stage) -> None:
    gid = f"plainsql_{'0' * 40}"
    prepare(stage, gid, 0, 1)
    assert {(each["parts"], each["ending"]) for each in reconciled(stage, 1)} == {("2 of unknown", "uncertain")}


def test_prepared_transactions_of_others_are_not_listed(stage: Stage) -> None:
    with stage.admin() as admin:
        admin.execute("begin")
        admin.execute("create table others ()")
        admin.execute("prepare transaction 'others'")
    assert reconciled(stage) == []
    with stage.admin() as admin:
        admin.execute("rollback prepared 'others'")


def test_a_cell_that_does_not_answer_is_named(stage: Stage, tmp_path: Path) -> None:
    stage.ask("update cells set conninfo = %s", f"host={tmp_path}")
    ended = stage.run_as_operator("directory", "reconcile", exit_code=1)
    assert "The cell 'local' does not respond. Run this again when it does." in ended.stderr


def test_unfinished_work_waits_for_seven_days(stage: Stage) -> None:
    stage.run("database", "delete", "--org", "acme", "main", "--yes")
    stage.ask("update databases set restorable_until = now()")
    printed = stage.run_as_operator("directory", "reconcile").stderr
    assert "Unfinished creations, deletions and moves, which wait for 7 days: 1." in printed
    ((waits, restorable),) = stage.ask("select work_after - now(), restorable_until - now() from databases")
    assert min(waits, restorable) > timedelta(days=6)


def test_restores_that_customers_asked_for_are_given_up(stage: Stage) -> None:
    stage.ask(
        "insert into restores (id, organization_id, database_id, target_id, cell_id, point, actor_kind)"
        " select 'r', organization_id, id, id, cell_id, now(), 'operator' from databases"
    )
    printed = stage.run_as_operator("directory", "reconcile").stderr
    assert "which wait for 7 days: 0." in printed
    assert stage.ask("select state, error_code from restores") == [("failed", "restore_abandoned")]
