"""Customers restore a database to a point in time, over HTTPS, from a real archive, and what is refused to them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plainsql_server.control_plane.restoring import restores as rules
from plainsql_server.control_plane.restoring.restores import LIMITS, REPLACED_MOST
from plainsql_server.directory.connection import Directory
from server.tests import forks
from server.tests.customers import Customers
from server.tests.operations.archived_cell import archived_cell
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.restoring_service import (
    CHECKED_LATER,
    RestoringService,
    is_filling,
    new_database,
    nothing_is_left,
    now_text,
    paused,
    restoring_service,
    rows,
    slow,
    state,
    stop,
    wait_until_ended,
    wait_until_filling,
)
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestoringService]:
    with archived_cell() as cell, restoring_service(cell, tmp_path_factory.mktemp("tls")) as service:
        yield service


@pytest.fixture(autouse=True)
def _alone(service: RestoringService) -> Iterator[None]:
    """Other tests' restores do not count for the limits, and have no workers."""
    service.cell.stage.ask("DELETE FROM restores WHERE ended_at IS NOT NULL")
    yield
    service.kill_workers()


@pytest.fixture
def worker(service: RestoringService) -> Iterator[None]:
    running = service.start_worker()
    yield
    stop(running)


def command(service: RestoringService, *arguments: str, exit_code: int = 0) -> "subprocess.CompletedProcess[str]":
    """`plainsql …` as the customer."""
    done = forks.run(arguments, environment_of(service), program=forks.CLIENT, timeout=170)
    assert done.returncode == exit_code, done.stderr
    return done


def environment_of(service: RestoringService) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
    environment |= {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.key}
    return environment | {"PLAINSQL_CA_FILE": str(service.ca_file)}


@pytest.mark.usefixtures("worker")
def test_a_database_becomes_what_it_was(service: RestoringService) -> None:
    made = service.create("shop", "create table t as select 'kept' as a")
    point = datetime.now(UTC)
    service.query("shop", "drop table t")
    asked = service.ask("shop", point)
    assert (asked["state"], asked["database_id"], asked["branch_id"]) == ("waiting", made, None)
    assert datetime.fromisoformat(asked["at"]) == point
    done = service.ended(asked["id"])
    assert (done["state"], done["error"], done["missing_transactions"]) == ("done", None, 0), done
    assert service.query("shop", "select a from t") == [{"a": "kept"}]
    assert service.answer("GET", "/v1/databases/shop")["database"]["id"] == made
    replaced = service.answer("GET", f"/v1/databases/{done['replaced_id']}")["database"]
    assert replaced["state"] == "deleting"
    assert replaced["restorable_until"] is not None
    service.check_left_over()


@pytest.mark.usefixtures("worker")
def test_a_branch_has_what_its_parent_was_and_is_listed_with_it(service: RestoringService) -> None:
    parent = service.create("orders", "create table t as select 1 as a")
    point = datetime.now(UTC)
    service.query("orders", "update t set a = 2")
    body = {"name": "orders-before", "branch_of": "orders", "at": point.isoformat()}
    made = service.answer("POST", "/v1/databases", 202, json=body)
    assert (made["database"]["state"], made["database"]["branch_of"]) == ("creating", parent)
    assert made["restore"]["branch_id"] == made["database"]["id"]
    done = service.ended(made["restore"]["id"])
    assert (done["state"], done["replaced_id"]) == ("done", None), done
    assert service.query("orders-before", "select a from t") == [{"a": 1}]
    assert service.query("orders", "select a from t") == [{"a": 2}]
    listed = service.answer("GET", "/v1/databases?limit=1000")["databases"]
    found = {each["name"]: (each["id"], each["state"], each["branch_of"]) for each in listed}
    assert found["orders-before"] == (made["database"]["id"], "ready", parent)
    service.check_left_over()


@pytest.mark.usefixtures("worker")
def test_the_command_restores_and_branches_and_shows_the_progress(service: RestoringService, tmp_path: Path) -> None:
    point = new_database(service, "notes", CHECKED_LATER).isoformat()
    branch = ("databases", "branch", "notes", "notes-before", "--at", point)
    with (tmp_path / "printed").open("w+b") as output:
        with slow(service):
            running = forks.start(branch, environment_of(service), output, tmp_path, module=forks.CLIENT)
            wait_until_filling(service)
            # It asks once a second, and may miss what takes less.
            printed = (tmp_path / "printed").read_text
            wait_for(lambda: "\ndata" in printed(), 60, printed)
        assert running.wait(170) == 0, printed()
    assert "a branch of 'notes'" in printed()
    assert service.query("notes-before", "select a from t") == [{"a": 1}]
    refused = command(service, "databases", "restore", "notes", "--at", point, exit_code=2)
    assert "confirm it with --yes" in refused.stderr
    restored = command(service, "databases", "restore", "notes", "--at", point, "--yes")
    assert "'notes-replaced-" in restored.stderr
    assert service.query("notes", "select a from t") == [{"a": 1}]
    listed = json.loads(command(service, "databases", "restores", "-o", "json").stdout)
    found = [(each["database"], each["branch"], each["state"], each["progress"]) for each in listed]
    assert found[:2] == [("notes", None, "done", None), ("notes", "notes-before", "done", None)]


def test_deleting_the_database_cancels_its_restore(service: RestoringService) -> None:
    point = new_database(service, "deleted")
    with slow(service):
        worker = service.start_worker()
        asked = service.ask("deleted", point)
        wait_until_filling(service)
        service.answer("DELETE", "/v1/databases/deleted", 202)
        canceled = service.restore(asked["id"])
        assert (canceled["state"], canceled["error"]["code"]) == ("failed", "restore_canceled")
        wait_for(lambda: not is_filling(service), 60, lambda: "the restore goes on")
        nothing_is_left(service)
    stop(worker)
    service.answer("POST", "/v1/databases/deleted/restore")
    assert rows(service, "deleted") == [2]


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "waiting"])
def test_deleting_the_branch_cancels_its_restore(service: RestoringService, is_running: bool) -> None:
    name = f"parent-{is_running}".lower()
    point = new_database(service, name)
    with slow(service), paused(service) as worker:
        if is_running:
            worker.send_signal(signal.SIGCONT)
        body = {"name": f"{name}-before", "branch_of": name, "at": point.isoformat()}
        made = service.answer("POST", "/v1/databases", 202, json=body)
        if is_running:
            wait_until_filling(service)
        listed = [each["name"] for each in service.answer("GET", "/v1/databases?limit=1000")["databases"]]
        assert [each for each in listed if each.startswith(name)] == [name, f"{name}-before"]
        service.answer("DELETE", f"/v1/databases/{name}-before", 202)
        canceled = service.restore(made["restore"]["id"])
        assert (canceled["state"], canceled["error"]["code"]) == ("failed", "restore_canceled")
        nothing_is_left(service)
    assert service.answer("GET", f"/v1/databases/{made['database']['id']}")["database"]["state"] == "deleted"
    # Its name is free.
    service.create(f"{name}-before")


def test_a_time_that_the_archive_does_not_reach_is_refused(service: RestoringService) -> None:
    service.create("young")
    too_early = datetime.now(UTC) - timedelta(hours=1)
    stage = service.cell.stage
    stage.ask("UPDATE databases SET content_since = now() - interval '2 hours' WHERE name = 'young'")
    with paused(service):
        body = {"at": too_early.isoformat()}
        message = service.refused(400, "archive_too_short", "POST", "/v1/databases/young/restore", json=body)
        assert "The archive begins at 2" in message
        # As if the worker had not looked yet.
        stage.ask("UPDATE restore_workers SET archive_since = NULL")
        asked = service.ask("young", too_early)
    worker = service.start_worker()
    failed = service.ended(asked["id"])
    assert (failed["state"], failed["error"]["code"]) == ("failed", "archive_too_short")
    assert "The archive reaches from 2" in failed["error"]["message"]
    stop(worker)


def test_a_time_is_refused_at_which_the_database_was_not_there_or_that_is_to_come(service: RestoringService) -> None:
    early = now_text()
    service.create("newer")
    path, later = "/v1/databases/newer/restore", (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    with paused(service):
        service.refused(400, "not_in_archive", "POST", path, json={"at": early})
        service.refused(400, "invalid_time", "POST", path, json={"at": later})
        service.refused(400, "invalid_time", "POST", path, json={"at": "2026-01-01T00:00:00"})
        service.refused(400, "malformed_request", "POST", path, json={"name": "x"})
        service.refused(400, "malformed_request", "POST", "/v1/databases", json={"name": "x", "at": now_text()})
        service.refused(409, "name_taken", "POST", path, json={"at": now_text(), "name": "main"})
        service.refused(400, "invalid_name", "POST", path, json={"at": now_text(), "name": "Main"})
    assert service.answer("GET", "/v1/restores?limit=1")["restores"][:1] != early


def test_the_databases_and_restores_of_others_are_not_found(service: RestoringService) -> None:
    made = service.create("ours")
    customers = Customers(service.cell.stage.dsn)
    customers.add_organization("strange")
    theirs = customers.new_key("write", "admin", organization="strange")
    with paused(service):
        asked = service.ask("ours", datetime.now(UTC))
        for named in (made, "ours"):
            path, body = f"/v1/databases/{named}/restore", {"at": now_text()}
            service.refused(404, "database_not_found", "POST", path, key=theirs, json=body)
            body = {"name": "stolen", "branch_of": named, "at": now_text()}
            service.refused(404, "database_not_found", "POST", "/v1/databases", key=theirs, json=body)
        service.refused(404, "restore_not_found", "GET", f"/v1/restores/{asked['id']}", key=theirs)
        assert f"{asked['id']}  " in service.cell.stage.run("restores", "list").stdout
        assert service.answer("GET", "/v1/restores", key=theirs)["restores"] == []
        service.answer("DELETE", "/v1/databases/ours", 202)


def test_without_a_worker_a_restore_is_refused(service: RestoringService) -> None:
    service.create("alone")
    service.cell.stage.ask("UPDATE restore_workers SET seen_at = now() - interval '1 hour'")
    body = {"at": now_text()}
    service.refused(503, "restore_unavailable", "POST", "/v1/databases/alone/restore", json=body)
    body = {"at": now_text(), "name": "alone-before", "branch_of": "alone"}
    service.refused(503, "restore_unavailable", "POST", "/v1/databases", json=body)
    service.refused(404, "database_not_found", "GET", "/v1/databases/alone-before")
    assert_found(doctor(service.cell.stage), "restored databases for its customers for 60 minutes", "log", "warning")


def test_a_database_has_one_restore_and_an_organization_few(service: RestoringService) -> None:
    names = [f"many-{number}" for number in range(LIMITS.unfinished + 1)]
    for name in names:
        service.create(name)
    with paused(service):
        service.ask(names[0], datetime.now(UTC))
        body = {"at": now_text()}
        service.refused(409, "restore_under_way", "POST", f"/v1/databases/{names[0]}/restore", json=body)
        for name in names[1 : LIMITS.unfinished]:
            service.ask(name, datetime.now(UTC))
        service.refused(403, "restore_limit", "POST", f"/v1/databases/{names[-1]}/restore", json=body)
        body = {"at": now_text(), "name": "many-branch", "branch_of": names[-1]}
        service.refused(403, "restore_limit", "POST", "/v1/databases", json=body)
        # Its name is free, soon.
        wait_for(lambda: _is_free(service, "many-branch"), 60, lambda: "the branch that was refused is still there")
        # And it does not count for the daily limit.
        assert service.cell.stage.ask("SELECT branch_of FROM databases WHERE name = 'many-branch'") == [(None,)]
        for name in names:
            service.answer("DELETE", f"/v1/databases/{name}", 202)
        service.create("a-day")
        service.cell.stage.ask(
            "INSERT INTO restores (id, organization_id, database_id, target_id, cell_id, point, actor_kind, state,"
            " error_code, ended_at) SELECT 'rst_' || i, organization_id, id, id, cell_id, now(), 'key', 'failed', 'x',"
            " now() FROM databases, generate_series(1, %s) AS i WHERE name = 'a-day'", LIMITS.a_day,
        )  # fmt: skip
        service.refused(403, "restore_limit", "POST", "/v1/databases/a-day/restore", json={"at": now_text()})


def test_replaced_contents_and_branches_count(service: RestoringService) -> None:
    dsn = service.cell.stage.dsn
    Customers(dsn).add_organization("small", "free")
    key = Customers(dsn).new_key("write", "admin", organization="small")
    service.create("first", key=key)
    path = "/v1/databases/first/restore"
    worker = service.start_worker()
    branch = service.answer("POST", path, 202, key=key, json={"at": now_text(), "name": "second"})["restore"]
    wait_until_ended(service, branch["id"])
    assert state(service, branch["id"])[0] == "done"
    service.create("third", key=key)
    message = service.refused(403, "database_limit", "POST", path, key=key, json={"at": now_text(), "name": "fourth"})
    assert "allows 3 databases" in message
    # As if there had been others.
    service.cell.stage.ask(
        "INSERT INTO restores (id, organization_id, database_id, target_id, cell_id, point, actor_kind, state,"
        " replaced_id, ended_at) SELECT 'rst_' || i, organization_id, id, id, cell_id, now(), 'key', 'done', id, now()"
        " FROM databases, generate_series(2, %s) AS i WHERE name = 'third'", REPLACED_MOST,
    )  # fmt: skip
    asked = service.answer("POST", path, 202, key=key, json={"at": now_text()})["restore"]["id"]
    wait_until_ended(service, asked)
    assert state(service, asked)[0] == "done"
    assert "databases with content that was replaced" in service.refused(
        403, "restore_limit", "POST", path, key=key, json={"at": now_text()}
    )
    stop(worker)


async def test_restores_that_no_worker_takes_up_fail(service: RestoringService) -> None:
    stage = service.cell.stage
    service.create("forgotten")
    with paused(service):
        body = {"name": "forgotten-before", "branch_of": "forgotten", "at": now_text()}
        made = service.answer("POST", "/v1/databases", 202, json=body)
        async with Directory.open(stage.dsn) as directory:
            await rules.tidy(directory)
            assert service.restore(made["restore"]["id"])["state"] == "waiting"
            stage.ask("UPDATE restore_workers SET seen_at = now() - interval '16 minutes'")
            stage.ask("UPDATE restores SET updated_at = now() - interval '16 minutes' WHERE state = 'waiting'")
            await rules.tidy(directory)
        failed = service.restore(made["restore"]["id"])
        assert (failed["state"], failed["error"]["code"]) == ("failed", "restore_unavailable")
    wait_for(lambda: _is_free(service, "forgotten-before"), 60, lambda: "the branch is still there")


def test_an_organization_is_purged_whose_restores_wait(service: RestoringService) -> None:
    customers = Customers(service.cell.stage.dsn)
    customers.add_organization("purged")
    key = customers.new_key("write", "admin", organization="purged")
    for name in ("one", "two"):
        service.create(name, key=key)
    with paused(service):
        service.answer("POST", "/v1/databases/one/restore", 202, key=key, json={"at": now_text()})
        service.answer("POST", "/v1/databases/two/restore", 202, key=key, json={"at": now_text(), "name": "three"})
        purged = service.cell.stage.run("org", "delete", "purged", "--purge", "--yes", "--json").stdout
        assert json.loads(purged)["databases_dropped"] == 3
    nothing_is_left(service)


def _is_free(service: RestoringService, name: str) -> bool:
    return service.call("GET", f"/v1/databases/{name}").status_code == 404
