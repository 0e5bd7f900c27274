"""A node without extension modules answers as one with them: queries, streams, transactions and errors.

It runs a copy of the package that lacks them. Its settings ask for the fast lane, which it cannot have.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from plainsql_server import VERSION
from plainsql_server.dev.ports import free_port
from server.tests import forks, plain_http
from server.tests.extension_files import copy_uncompiled
from server.tests.load import running_node
from server.tests.service import Service

pytestmark = pytest.mark.compiled

FORMATS = ("application/json", "text/event-stream", "application/x-ndjson", "text/csv")
# More rows than one chunk has, with values that the row writer writes itself, and with those that it leaves to Python.
MANY_ROWS = """
    select n, n * 1.5 as price, repeat('é"\\', n % 7) as name, nullif(n % 3, 0) as part, n % 2 = 0 as even,
        timestamptz '2026-11-16 12:00+00' + n * interval '1 hour' as at, array[n, null] as list,
        json_build_object('n', n) as object, case n % 50 when 0 then 'NaN'::float8 else n end as number
    from generate_series(1, 2000) n
"""
QUERIES: tuple[dict[str, Any], ...] = (
    {"sql": MANY_ROWS, "max_rows": 2000},
    {"sql": "select $1::int as a, $2::text as b", "params": [7, None]},
    {"sql": "select 1 as a, 2 as a", "row_format": "array"},
    {"sql": "select 9007199254740993 as big", "big_numbers": "string"},
    {"sql": "select 1 / $1::int", "params": [0]},
    {"sql": "select * from nowhere"},
)


@dataclass(frozen=True)
class Build:
    """A connection to a node, and where its metrics are."""

    client: httpx.Client
    metrics_port: int

    def post(self, path: str, body: dict[str, Any], accept: str = FORMATS[0]) -> tuple[int, str]:
        """The answer without what differs from request to request."""
        response = self.client.post(path, json=body, headers={"Accept": accept})
        text = re.sub(r"\b(req|txn)_[0-9A-Za-z]+", r"\1", response.text)
        return response.status_code, re.sub(r'"(total|exec|commit)_us":\d+', r'"\1_us":0', text)

    def metrics(self) -> str:
        return self.client.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text


@contextmanager
def running_build(service: Service) -> Iterator[Build]:
    metrics_port = free_port()
    headers = {"Authorization": f"Bearer {service.api_key}"}
    with (
        running_node(service.directory_dsn, fast_lane="on", metrics_port=metrics_port) as node,
        plain_http.client(base_url=f"http://127.0.0.1:{node.port}", headers=headers) as client,
    ):
        yield Build(client, metrics_port)


@pytest.fixture(scope="module")
def uncompiled_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python's path, with a package without extension modules before all else."""
    folder = tmp_path_factory.mktemp("uncompiled")
    copy_uncompiled(folder)
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module")
def compiled(service: Service) -> Iterator[Build]:
    with running_build(service) as build:
        yield build


@pytest.fixture(scope="module")
def uncompiled(service: Service, uncompiled_path: str) -> Iterator[Build]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", uncompiled_path)
        with running_build(service) as build:
            patch.undo()
            yield build


def test_each_build_reports_which_it_is(compiled: Build, uncompiled: Build, uncompiled_path: str) -> None:
    assert 'extension_modules="compiled"' in compiled.metrics()
    assert 'extension_modules="not compiled"' in uncompiled.metrics()
    ended = forks.run(["--version"], {**os.environ, "PYTHONPATH": uncompiled_path}, cwd=Path.home())
    assert ended.stdout == f"plainsql-server {VERSION} (not compiled)\n"


@pytest.mark.parametrize("accept", FORMATS)
@pytest.mark.parametrize("body", QUERIES, ids=lambda body: " ".join(body["sql"].split())[:30])
def test_queries_and_streams_are_answered_alike(
    compiled: Build, uncompiled: Build, accept: str, body: dict[str, Any]
) -> None:
    # The lane of a compiled node learns from the first two.
    answers = {build.post("/v1/query", body, accept) for _ in range(3) for build in (compiled, uncompiled)}
    assert len(answers) == 1


def test_transactions_are_answered_alike(service: Service, compiled: Build, uncompiled: Build) -> None:
    service.query("create table builds (n int)")
    body = {
        "statements": [
            {"sql": "insert into builds values ($1) returning n", "params": [1]},
            "select count(*) as n from builds",
            "delete from builds",
            MANY_ROWS,
        ]
    }
    answers = {build.post("/v1/transaction", body) for build in (compiled, uncompiled)}
    assert {status for status, _ in answers} == {200}
    assert len(answers) == 1
    failing = {"statements": ["insert into builds values (1)", "select 1 / 0"]}
    (answer,) = {build.post("/v1/transaction", failing) for build in (compiled, uncompiled)}
    assert "division_by_zero" in answer[1]
    assert service.value("select count(*) from builds") == 0
    service.query("drop table builds")


def test_only_the_compiled_node_has_a_lane(compiled: Build, uncompiled: Build) -> None:
    for number in range(10):
        body = {"sql": "select $1::int as a", "params": [number]}
        for build in (compiled, uncompiled):
            assert f'"rows":[{{"a":{number}}}]' in build.post("/v1/query", body)[1]
    assert re.search(r"^plainsql_lane_requests_total [1-9]", compiled.metrics(), re.MULTILINE)
    assert "plainsql_lane_requests_total" not in uncompiled.metrics()
