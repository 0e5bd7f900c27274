"""Every probe through every route that runs SQL, as a tenant: none gets out. As a superuser: they are real."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import psycopg
import pytest

from plainsql_server.engine.admin import provisioning
from server.tests.control_plane.cell_state import yes
from server.tests.postgres import SUPERUSER
from server.tests.tenant_isolation.cells import Hostile, Names, hostile_cell
from server.tests.tenant_isolation.probes import PROBES, Probe


@pytest.fixture(scope="module", params=[15, 18])
def hostile(request: pytest.FixtureRequest) -> Iterator[Hostile]:
    with hostile_cell(request.param) as running:
        yield running


@contextmanager
def targets(hostile: Hostile) -> Iterator[None]:
    """Connections of others that a probe may try to end or to look at."""
    with ExitStack() as stack:
        for user, database in ((SUPERUSER, "postgres"), (hostile.other.owner, hostile.other.database)):
            dsn = hostile.postgres.dsn(user, database) + " application_name=probe-target"
            # As many as there are probes that end them when a superuser tries.
            for _ in range(3):
                connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
                connection.execute("select 'a secret of mine'")
        yield


def by_query(client: httpx.Client, sql: str) -> httpx.Response:
    return client.post("/v1/query", json={"sql": sql})


def by_text(client: httpx.Client, sql: str) -> httpx.Response:
    return client.post("/query", content=sql.encode(), headers={"Content-Type": "text/plain"})


def by_transaction(client: httpx.Client, sql: str) -> httpx.Response:
    return client.post("/v1/transaction", json={"statements": [sql]})


def by_rehearsal(client: httpx.Client, sql: str) -> httpx.Response:
    statement = {"sql": sql, "digest": True, "freeze": True}
    return client.post("/v1/transaction", json={"statements": [statement], "dry_run": True, "check_deferred": True})


def by_stream(client: httpx.Client, sql: str) -> httpx.Response:
    return client.post("/v1/query", json={"sql": f"/*+ STREAM */ {sql}"}, headers={"Accept": "application/x-ndjson"})


Route = Callable[[httpx.Client, str], httpx.Response]


def succeeded(response: httpx.Response) -> bool:
    assert response.status_code < 500, response.text
    if response.headers["content-type"].startswith("application/json"):
        return bool(response.json()["success"])
    return '"error":' not in response.text.splitlines()[-1]


def escapes(hostile: Hostile, route: Route) -> list[str]:
    found = []
    with hostile.client() as client, targets(hostile):
        for probe in PROBES:
            worked = succeeded(route(client, hostile.fill(probe.sql)))
            if probe.proof is not None:
                worked = hostile.is_true(hostile.fill(probe.proof), hostile.own.database)
            if worked:
                found.append(probe.name)
    return found


def test_there_are_enough_probes_and_no_duplicates() -> None:
    assert len(PROBES) >= 80
    assert len({probe.name for probe in PROBES}) == len({probe.sql for probe in PROBES}) == len(PROBES)


@pytest.mark.parametrize("route", [by_query, by_text, by_transaction, by_rehearsal, by_stream])
def test_no_probe_gets_out(hostile: Hostile, route: Route) -> None:
    assert escapes(hostile, route) == []


def test_the_service_logs_in_as_the_tenant_whatever_is_reset(hostile: Hostile) -> None:
    with hostile.client() as client:
        for reset in ("reset all", "reset role", "reset session authorization", "set role none", "discard all"):
            statements = [reset, "select current_user::text as me, session_user::text as myself"]
            response = client.post("/v1/transaction", json={"statements": statements})
            if not response.json()["success"]:
                response = by_query(client, statements[1])
            rows = response.json().get("rows") or response.json()["results"][1]["rows"]
            assert rows == [{"me": hostile.own.owner, "myself": hostile.own.owner}]


# The last test of this file: what a superuser does to the cell is not undone.
def test_each_probe_works_for_a_superuser_where_it_can(hostile: Hostile) -> None:
    own = _database_of_its_own(hostile)
    failed = []
    with targets(hostile):
        for probe in PROBES:
            if probe.impossible is None and hostile.major in probe.majors:
                failed += _not_working(hostile, probe, own)
    assert failed == []


def _database_of_its_own(hostile: Hostile) -> Names:
    names = provisioning.new_names()
    asyncio.run(provisioning.create_database(hostile.postgres.conninfo, SUPERUSER, names, "s", yes))
    return Names(names.database, names.owner_role, names.reader_role)


def _not_working(hostile: Hostile, probe: Probe, own: Names) -> list[str]:
    try:
        # A new session each, because some of them change it.
        with hostile.postgres.connect(database=own.database) as admin:
            admin.execute(hostile.fill(probe.sql, own).encode())
    except psycopg.Error as error:
        return [f"{probe.name}: {error}"]
    if probe.proof is not None and not hostile.is_true(hostile.fill(probe.proof, own), own.database):
        return [f"{probe.name}: the proof does not see it"]
    return []
