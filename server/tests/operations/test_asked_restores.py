"""Customers restore a database to a point in time, over HTTPS, from a real archive."""

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from server.tests import forks
from server.tests.operations.archived_cell import archived_cell
from server.tests.operations.restoring_service import RestoringService, restoring_service, stop

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestoringService]:
    with archived_cell() as cell, restoring_service(cell, tmp_path_factory.mktemp("tls")) as service:
        yield service


@pytest.fixture
def worker(service: RestoringService) -> Iterator[None]:
    running = service.start_worker()
    yield
    print(stop(running))


def command(service: RestoringService, *arguments: str, exit_code: int = 0) -> "subprocess.CompletedProcess[str]":
    """`plainsql …` as the customer."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
    environment |= {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.key}
    environment |= {"PLAINSQL_CA_FILE": str(service.ca_file)}
    done = forks.run(arguments, environment, program=forks.CLIENT, timeout=170)
    assert done.returncode == exit_code, done.stderr
    return done


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
    service.create("notes", "create table t as select 1 as a")
    point = datetime.now(UTC).isoformat()
    service.query("notes", "update t set a = 2")
    branched = command(service, "databases", "branch", "notes", "notes-before", "--at", point)
    assert "a branch of 'notes'" in branched.stderr
    assert "restore the cell's files" in branched.stderr
    assert service.query("notes-before", "select a from t") == [{"a": 1}]
    refused = command(service, "databases", "restore", "notes", "--at", point, exit_code=2)
    assert "confirm it with --yes" in refused.stderr
    restored = command(service, "databases", "restore", "notes", "--at", point, "--yes")
    assert "'notes-replaced-" in restored.stderr
    assert service.query("notes", "select a from t") == [{"a": 1}]
