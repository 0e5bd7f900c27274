"""The examples, started as their platforms start them, with the package as it is installed from npm."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from js.tests.programs import JS, installed, node, variables
from plainsql_server.dev.ports import free_port
from server.tests import plain_http
from server.tests.processes import wait_for
from server.tests.service import Service

EXAMPLES = JS.parent / "examples"
_END_LIMIT_S = 30
_START_LIMIT_S = 60


@pytest.fixture(scope="module")
def folder(js_package: None) -> Iterator[Path]:
    """The examples, in a folder in which the package is installed."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(EXAMPLES, place, dirs_exist_ok=True)
        installed(Path(place))
        yield Path(place)


@pytest.fixture
def notes(service: Service) -> Iterator[Service]:
    service.query("create table notes (id int generated always as identity primary key, body text not null)")
    service.query("create table tags (note int not null references notes, tag text not null)")
    yield service
    service.query("drop table notes, tags")


@contextmanager
def running(service: Service, *command: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    known = {**os.environ, **variables(service), **environment}
    process = subprocess.Popen(["node", *command], env=known, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_END_LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def served(service: Service, *shape: str | Path) -> Iterator[httpx.Client]:
    """A client of the handlers of an example."""
    with running(service, JS / "tests/serve.mjs", *shape) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with plain_http.client(base_url=f"http://127.0.0.1:{port}", timeout=_START_LIMIT_S) as client:
            yield client


def test_the_worker_writes_reads_and_streams(notes: Service, folder: Path) -> None:
    with served(notes, "worker", folder / "worker/index.js") as client:
        for number, body in enumerate(["milk", "two eggs"], 1):
            answer = client.post("/notes", json={"body": body})
            assert (answer.status_code, answer.json()) == (201, {"id": number, "body": body})
        assert client.get("/notes").json() == [{"id": 2, "body": "two eggs"}, {"id": 1, "body": "milk"}]
        exported = client.get("/export")
        assert exported.headers["content-type"] == "application/x-ndjson"
        assert [json.loads(line)["body"] for line in exported.text.splitlines()] == ["milk", "two eggs"]
        refused = client.post("/notes", json={"body": None})
        assert (refused.status_code, refused.json()) == (500, {"error": "not_null_violation"})
        assert client.get("/nowhere").status_code == 404


def test_the_route_handlers_write_all_or_nothing_and_give_sessions(notes: Service, folder: Path) -> None:
    with served(notes, "routes", folder / "next/app") as client:
        answer = client.post("/notes", json={"body": "milk", "tags": ["food", "white"]})
        assert (answer.status_code, answer.json()) == (201, {"id": 1, "body": "milk"})
        assert client.get("/notes").json() == [{"id": 1, "body": "milk"}]
        assert [row["tag"] for row in notes.query("select tag from tags where note = 1")["rows"]] == ["food", "white"]
        session = client.post("/session").json()
    assert session["url"] == notes.data_url
    refused = notes.call("POST", "/v1/query", key=session["token"], json={"sql": "delete from tags"}).json()
    assert refused["error"]["code"] == "read_only_sql_transaction"


@pytest.mark.browser
def test_the_page_searches_while_one_types(notes: Service, folder: Path) -> None:
    notes.query("insert into notes (body) values ('milk'), ('two eggs'), ('<b>bold</b>')")
    port = free_port()

    def is_reachable() -> bool:
        try:
            return plain_http.get(f"http://127.0.0.1:{port}/").status_code == 200
        except httpx.TransportError:
            return False

    with running(notes, folder / "html/server.js", PORT=str(port)):
        wait_for(is_reachable, _START_LIMIT_S, lambda: "the server of the page doesn't answer")
        seen = json.loads(node("tests/search_notes.mjs", f"http://127.0.0.1:{port}/", "egg"))
    assert seen == {"all": ["milk", "two eggs", "<b>bold</b>"], "found": ["two eggs"]}
