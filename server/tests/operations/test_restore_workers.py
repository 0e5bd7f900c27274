"""Workers that restore what customers ask for: killed, thought to be dead, ended, too slow, or two at a time."""

import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import cells
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.restoring import restores
from plainsql_server.directory.restoring.restores import RestoreProgress
from plainsql_server.directory.rights.grants import Role
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.worker import RestoreWorker, StoredProgress
from plainsql_server.operations.restore import RestoreTimes
from server.tests.customers import Customers
from server.tests.operations.archived_cell import archived_cell
from server.tests.operations.restoring_service import (
    CHECKED_LATER,
    RestoringService,
    Worker,
    expire_drafts,
    expire_lease,
    new_database,
    nothing_is_left,
    now_text,
    paused,
    restoring_service,
    rows,
    slow,
    state,
    stop,
    wait_for_end,
    wait_until_ended,
    wait_until_filling,
)
from server.tests.postgres import SUPERUSER, as_role
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


def test_a_restore_whose_worker_was_killed_is_done_by_another_and_nothing_is_left(service: RestoringService) -> None:
    point = new_database(service, "killed")
    with slow(service):
        worker = service.start_worker()
        asked = service.ask("killed", point)
        wait_until_filling(service)
        # The spare cluster is removed before the backup is restored.
        assert service.cell.left_over() == []
        wait_for(lambda: service.restore(asked["id"])["step"] == "data", 30, lambda: str(service.restore(asked["id"])))
        shown = service.restore(asked["id"])
        assert (shown["state"], shown["error"], shown["replaced_id"]) == ("running", None, None)
        assert 0 <= shown["done_bytes"] <= shown["total_bytes"]
        worker.kill()
    assert rows(service, "killed") == [2]
    expire_lease(service, asked["id"])
    worker = service.start_worker()
    done = service.ended(asked["id"])
    assert done["state"] == "done", done
    assert state(service, asked["id"]) == ("done", 2)
    assert rows(service, "killed") == [1]
    expire_drafts(service)
    nothing_is_left(service)
    stop(worker)


def test_a_worker_that_was_thought_to_be_dead_changes_nothing(service: RestoringService) -> None:
    point = new_database(service, "paused")
    with slow(service):
        first = service.start_worker()
        asked = service.ask("paused", point)
        wait_until_filling(service)
        first.send_signal(signal.SIGSTOP)
    expire_lease(service, asked["id"])
    second = service.start_worker()
    assert service.ended(asked["id"])["state"] == "done"
    service.query("paused", "update t set a = 3")
    stop(second)
    # It goes on with the next one.
    service.create("after-paused")
    assert ended_of_abandoned(service, "after-paused", first)["error"]["code"] == "restore_abandoned"
    assert rows(service, "paused") == [3]
    assert state(service, asked["id"]) == ("done", 2)
    assert f"{asked['id']}: done" not in stop(first)
    nothing_is_left(service)


def ended_of_abandoned(service: RestoringService, name: str, worker: Worker) -> dict[str, Any]:
    """A restore that was begun too often, when a worker that is stopped has gone on and ended it: at once."""
    asked = service.ask(name, datetime.now(UTC))
    service.cell.stage.ask("UPDATE restores SET attempts = 5 WHERE id = %s", asked["id"])
    worker.send_signal(signal.SIGCONT)
    return service.ended(asked["id"])


@pytest.mark.parametrize("is_branch", [False, True])
async def test_a_worker_whose_claim_ends_while_it_publishes_publishes_nothing(
    service: RestoringService, is_branch: bool
) -> None:
    name = f"ending-{is_branch}".lower()
    service.create(name, CHECKED_LATER, "create table t (a int check (checked(a)))", "insert into t values (1)")
    point, stage = datetime.now(UTC), service.cell.stage
    service.query(name, "update t set a = 2")
    first = service.start_worker()
    with stage.postgres.connect(SUPERUSER, "postgres") as admin:
        with slow(service):
            asked, target = ask_for(service, name, point, is_branch=is_branch)
            wait_until_filling(service)
            draft = "select d.engine_name from restores r join databases d on d.id = r.replaced_id where r.id = %s"
            ((engine_name,),) = stage.ask(draft, asked["id"])
            admin.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (engine_name,))
        # Publishing begins with this lock.
        waiting = "select from pg_locks where locktype = 'advisory' and not granted"
        wait_for(lambda: admin.execute(waiting).rowcount > 0, 60, lambda: str(service.restore(asked["id"])))
        first.send_signal(signal.SIGSTOP)
        expire_lease(service, asked["id"])
        async with Directory.open(stage.dsn) as directory:
            local = await cells.get(directory, "local")
            assert await restores.claim(directory, local.id, 60, 3600) is not None
    first.send_signal(signal.SIGCONT)
    # It has dropped what it filled.
    dropped = "select from databases where engine_name = %s and state = 'deleted'"
    wait_for(lambda: stage.ask(dropped, engine_name) != [], 60, lambda: str(stage.ask("select * from restores")))
    assert f"{asked['id']}: done" not in stop(first)
    assert state(service, asked["id"]) == ("running", 2)
    assert rows(service, name) == [2]
    if is_branch:
        assert service.answer("GET", f"/v1/databases/{target}")["database"]["state"] == "creating"
    expire_lease(service, asked["id"])
    second = service.start_worker()
    assert service.ended(asked["id"])["state"] == "done"
    assert state(service, asked["id"]) == ("done", 3)
    assert rows(service, target) == [1]
    stop(second)
    nothing_is_left(service)


def ask_for(service: RestoringService, name: str, point: datetime, *, is_branch: bool) -> tuple[dict[str, Any], str]:
    """A restore in place, or to a branch; and the name of what gets the content."""
    if not is_branch:
        return service.ask(name, point), name
    body = {"name": f"{name}-then", "branch_of": name, "at": point.isoformat()}
    return service.answer("POST", "/v1/databases", 202, json=body)["restore"], body["name"]


def test_of_two_workers_each_restore_has_one(service: RestoringService) -> None:
    organizations = [f"both-{number}" for number in range(2)]
    asked = []
    with paused(service):
        for name in organizations:
            Customers(service.cell.stage.dsn).add_organization(name)
            key = Customers(service.cell.stage.dsn).new_key("write", "admin", organization=name)
            for database in ("one", "two"):
                service.create(database, key=key)
                made = service.answer(
                    "POST",
                    f"/v1/databases/{database}/restore",
                    202,
                    key=key,
                    json={"at": now_text(), "name": f"{database}-b"},
                )
                asked.append((made["restore"]["id"], key))
        second = service.start_worker()
    third = service.start_worker()
    for restore_id, _ in asked:
        wait_until_ended(service, restore_id)
    for each in (third, second):
        stop(each)
    assert {state(service, restore_id) for restore_id, _ in asked} == {("done", 1)}
    nothing_is_left(service)


def test_a_worker_that_is_ended_leaves_its_restore_to_the_next_one_at_once(service: RestoringService) -> None:
    point = new_database(service, "ended")
    with slow(service):
        worker = service.start_worker()
        asked = service.ask("ended", point)
        wait_until_filling(service)
        stop(worker)
        assert service.cell.left_over() == []
        assert service.restore(asked["id"])["state"] == "waiting"
    worker = service.start_worker()
    assert service.ended(asked["id"])["state"] == "done"
    assert rows(service, "ended") == [1]
    stop(worker)


def test_a_database_is_open_again_whose_worker_was_killed_while_it_was_replaced(service: RestoringService) -> None:
    point = new_database(service, "closed", CHECKED_LATER)
    stage = service.cell.stage
    closed = "select from pg_database where datname = %s and not datallowconn"
    with psycopg.connect(stage.dsn) as directory, stage.postgres.connect() as admin:
        # The transaction that publishes the content waits for this.
        directory.execute("select from databases where name = 'closed' for no key update")
        worker = service.start_worker()
        asked = service.ask("closed", point)
        wait_for(lambda: admin.execute(closed, (stage.names("closed")[0],)).rowcount > 0, 120, lambda: "not closed")
        worker.kill()
    with slow(service):
        expire_lease(service, asked["id"])
        worker = service.start_worker()
        wait_until_filling(service)
        assert rows(service, "closed") == [2]
    assert service.ended(asked["id"])["state"] == "done"
    assert rows(service, "closed") == [1]
    stop(worker)
    # That of the worker that was killed; otherwise, later tests would wait for it.
    expire_drafts(service)


def test_what_was_replaced_stays_closed_until_no_node_uses_it_also_if_the_worker_is_ended(
    service: RestoringService,
) -> None:
    point = new_database(service, "swapped")
    old = service.cell.stage.names("swapped")[0]
    worker = service.start_worker(PLAINSQL_PRINCIPAL_CACHE_MS="3000")
    done = service.ended(service.ask("swapped", point)["id"])
    done_s = time.monotonic()
    assert done["state"] == "done"
    worker.send_signal(signal.SIGTERM)
    open_again = "select from pg_database where datname = %s and datallowconn"
    with service.cell.stage.postgres.connect() as admin:
        wait_for(lambda: admin.execute(open_again, (old,)).rowcount > 0, 60, lambda: "the old content stays closed")
    assert time.monotonic() - done_s > 1
    assert rows(service, "swapped") == [1]
    wait_for_end(worker)
    service.check_left_over()
    service.answer("POST", f"/v1/databases/{done['replaced_id']}/restore")
    assert rows(service, done["replaced_id"]) == [2]


def test_what_was_replaced_is_open_again_when_a_worker_is_started_if_one_was_killed(service: RestoringService) -> None:
    point = new_database(service, "exchanged")
    old = service.cell.stage.names("exchanged")[0]
    worker = service.start_worker(PLAINSQL_PRINCIPAL_CACHE_MS="60000")
    done = service.ended(service.ask("exchanged", point)["id"])
    worker.kill()
    is_open = "select from pg_database where datname = %s and datallowconn"
    with service.cell.stage.postgres.connect() as admin:
        assert admin.execute(is_open, (old,)).rowcount == 0
        worker = service.start_worker()
        wait_for(lambda: admin.execute(is_open, (old,)).rowcount > 0, 60, lambda: "the old content stays closed")
    service.answer("POST", f"/v1/databases/{done['replaced_id']}/restore")
    assert rows(service, done["replaced_id"]) == [2]
    stop(worker)
    service.check_left_over()


async def test_a_restore_that_takes_too_long_fails(service: RestoringService) -> None:
    point = new_database(service, "too-long")
    output: list[str] = []
    with slow(service), paused(service):
        asked = service.ask("too-long", point)
        async with Directory.open(as_role(service.cell.stage.dsn, Role.OPERATOR), max_connections=3) as directory:
            local, archive = await cells.get(directory, "local"), Archive(service.cell.config_folder)
            worker = RestoreWorker(
                directory, local, archive, service.cell.work_folder, RestoreTimes(60, 0), 8, 0, output.append
            )
            assert await worker.work_once()
            failed = service.restore(asked["id"])
            assert (failed["state"], failed["error"]["code"]) == ("failed", "restore_timed_out"), output
            assert not await worker.work_once()
    nothing_is_left(service)


def test_the_time_that_a_step_still_takes_is_guessed_when_a_part_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: elapsed_s)
    progress = StoredProgress()
    assert progress.now() == RestoreProgress("start")
    progress.step("replay", 1000)
    assert progress.now() == RestoreProgress("replay", 0, 1000)
    progress.at(250)
    elapsed_s = 0.5
    assert progress.now() == RestoreProgress("replay", 250, 1000)
    elapsed_s = 10.0
    assert progress.now() == RestoreProgress("replay", 250, 1000, 30)
    progress.step("indexes", 7, in_bytes=False)
    progress.at(3)
    elapsed_s = 20.0
    assert progress.now() == RestoreProgress("indexes")


def test_a_restore_is_given_up_when_the_disk_fills(service: RestoringService) -> None:
    service.create("full-disk")
    worker = service.start_worker("--free-percent", "100")
    failed = service.ended(service.ask("full-disk", datetime.now(UTC))["id"])
    assert (failed["state"], failed["error"]["code"]) == ("failed", "restore_failed")
    assert str(service.cell.work_folder) not in failed["error"]["message"]
    output = stop(worker)
    assert f"bytes in {service.cell.work_folder}, and " in output
    assert "must stay free" in output
    nothing_is_left(service)


def test_a_restore_that_ends_its_workers_is_abandoned(service: RestoringService) -> None:
    service.create("poisoned")
    with paused(service) as worker:
        assert ended_of_abandoned(service, "poisoned", worker)["error"]["code"] == "restore_abandoned"
