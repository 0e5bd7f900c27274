"""GET /capabilities and its probes: what is promised is done, and where it cannot be done the probe says so."""

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from plainsql_server import VERSION
from plainsql_server.data_plane.diagnostics.capabilities import CAPABILITIES
from plainsql_server.engine.execution.temporary_schemas import new_schema_name
from plainsql_server.http.data.capabilities import CapabilitiesAnswer, ProbeAnswer
from plainsql_server.limits.tiers import TIERS
from server.tests import plain_http
from server.tests.cell import running_cell
from server.tests.consistency.wire import wire_to_engine
from server.tests.end_to_end import tenants
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.own_databases import OwnDatabase, new_database
from server.tests.load import running_node
from server.tests.service import Service


@pytest.fixture(scope="module")
def database(service: Service) -> OwnDatabase:
    return new_database(service)


def probe(database: OwnDatabase, name: str) -> dict[str, Any]:
    response = database.call("GET", f"/capabilities/{name}")
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=ProbeAnswer)
    answer: dict[str, Any] = response.json()
    assert (answer["name"], answer["probed"]) == (name, True)
    assert answer["latency_us"] > 0
    assert answer["evidence"]
    return answer


def test_the_matrix_lists_every_capability_of_the_contract(service: Service) -> None:
    response = service.call("GET", "/capabilities")
    matrix = msgspec.json.decode(response.content, type=CapabilitiesAnswer)
    assert matrix.version == VERSION
    assert set(matrix.capabilities) == set(CAPABILITIES)
    assert {name for name, entry in matrix.capabilities.items() if not entry.supported} == {
        "interactive_transactions", "listen_notify", "copy",
    }  # fmt: skip
    assert all(entry.description for entry in matrix.capabilities.values())
    assert all((entry.since is not None) == entry.supported for entry in matrix.capabilities.values())


def test_the_limits_are_those_of_the_callers_tier(service: Service) -> None:
    for key, tier in ((service.api_key, "dedicated"), (tenants.free_key(service), "free")):
        limits = service.call("GET", "/capabilities", key=key).json()["limits"]
        assert limits.pop("tier") == tier
        assert limits == {name: getattr(TIERS[tier], name) for name in limits}
        assert len(limits) == len(inspect.signature(type(TIERS[tier])).parameters)


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_probe_confirms_the_matrix_and_leaves_nothing_behind(database: OwnDatabase, name: str) -> None:
    answer = probe(database, name)
    assert answer["supported"] is CAPABILITIES[name].supported, answer
    assert database.objects() == set()


def test_probes_do_not_mark_the_database_as_having_code(database: OwnDatabase) -> None:
    with database.service.engine("plainsql_directory") as directory:
        row = directory.execute("SELECT plain FROM databases WHERE name = %s", (database.name,)).fetchone()
    assert row == (True,)
    with database.service.engine(database.engine_name) as engine:
        assert engine.execute("SELECT count(*) FROM plainsql.requests").fetchone() == (0,)


def test_the_write_skew_test_really_races(database: OwnDatabase) -> None:
    evidence = probe(database, "serializable_isolation")["evidence"]
    assert evidence["each_saw_on_call"] == [2, 2], "both must have read before either wrote"
    assert sorted(evidence["outcomes"]) == ["40001", "committed"]
    assert (evidence["isolation"], evidence["left_on_call"]) == ("serializable", 1)


def test_a_stream_really_streams(database: OwnDatabase) -> None:
    evidence = probe(database, "streaming")["evidence"]
    came_us = evidence["rows_came_after_us"]
    assert came_us == sorted(came_us)
    assert came_us[-1] - came_us[0] >= 3 * evidence["row_made_every_us"]


def test_serializable_isolation_is_false_on_a_cell_forced_to_repeatable_read() -> None:
    with (
        running_cell() as cell,
        wire_to_engine(cell.postgres.socket_dir, "repeatable read") as (_, folder),
        cell.reached_through(folder),
        running_node(cell.directory_dsn, metrics_port=0) as node,
    ):
        headers = {"Authorization": f"Bearer {cell.key}"}
        url = f"http://127.0.0.1:{node.port}/capabilities/serializable_isolation"
        answer = plain_http.get(url, headers=headers).json()
        assert answer["supported"] is False, answer
        assert answer["evidence"]["isolation"] == "repeatable read"
        assert answer["evidence"]["outcomes"] == ["committed", "committed"]
        assert answer["evidence"]["left_on_call"] == 0, "the skew happened"


@contextmanager
def switched(database: OwnDatabase, off: str, on: str) -> Iterator[None]:
    """Something of the cell is off for the length of the block."""
    names = {"db": database.engine_name, "owner": database.owner}
    with database.service.engine(database.engine_name) as engine:
        engine.execute(off.format(**names).encode())
        try:
            yield
        finally:
            engine.execute(on.format(**names).encode())


SWITCHES = [
    (
        ["functions", "triggers"],
        "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC",
        "GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC",
        "42501",
    ),
    (
        ["large_objects"],
        "REVOKE EXECUTE ON FUNCTION lo_from_bytea(oid, bytea) FROM {owner}",
        "GRANT EXECUTE ON FUNCTION lo_from_bytea(oid, bytea) TO {owner}",
        "42501",
    ),
    (
        ["idempotency_keys"],
        "REVOKE USAGE ON SCHEMA plainsql FROM {owner}",
        "GRANT USAGE ON SCHEMA plainsql TO {owner}",
        "42501",
    ),
    (
        # Whatever makes scratch objects.
        [
            "views",
            "constraints",
            "deferred_constraints",
            "upsert",
            "merge",
            "json_documents",
            "generated_columns",
            "partitioned_tables",
            "materialized_views",
            "row_level_security",
            "atomic_transactions",
            "transaction_references",
            "transaction_expectations",
            "serializable_isolation",
        ],
        "REVOKE CREATE ON DATABASE {db} FROM {owner}",
        "GRANT CREATE ON DATABASE {db} TO {owner}",
        "42501",
    ),
    (
        ["full_text_search"],
        "ALTER TEXT SEARCH CONFIGURATION english RENAME TO gone",
        "ALTER TEXT SEARCH CONFIGURATION gone RENAME TO english",
        "42704",
    ),
    (
        ["streaming", "statement_deadline"],
        "REVOKE EXECUTE ON FUNCTION pg_sleep(float8) FROM PUBLIC",
        "GRANT EXECUTE ON FUNCTION pg_sleep(float8) TO PUBLIC",
        "42501",
    ),
]


@pytest.mark.parametrize(("names", "off", "on", "sqlstate"), SWITCHES, ids=lambda value: str(value)[:30])
def test_a_probe_reports_a_disabled_feature(
    database: OwnDatabase, names: list[str], off: str, on: str, sqlstate: str
) -> None:
    with switched(database, off, on):
        for name in names:
            answer = probe(database, name)
            assert answer["supported"] is False, answer
            assert sqlstate in str(answer["evidence"]), answer
    assert all(probe(database, name)["supported"] for name in names)
    assert database.objects() == set()


def test_an_unknown_object_is_404(database: OwnDatabase) -> None:
    for name in ("nothing", "SERIALIZABLE_ISOLATION", "serializable_isolation%20"):
        error_of(database.call("GET", f"/capabilities/{name}"), 404, "capability_not_found")
    for path in ("/capabilities/", "/capabilities/streaming/more"):
        error_of(database.call("GET", path), 404, "route_not_found")
    error_of(database.call("POST", "/capabilities/streaming"), 405, "method_not_allowed")


@pytest.mark.parametrize("name", CAPABILITIES)
def test_no_probe_is_run_on_a_database_that_is_not_there(service: Service, name: str) -> None:
    answer = service.call("GET", f"/capabilities/{name}", headers={"X-Database": '"no name'})
    error_of(answer, 404, "database_not_found")


def test_a_reader_sees_the_matrix_and_runs_no_probe(service: Service) -> None:
    key = tenants.read_key(service)
    assert service.call("GET", "/capabilities", key=key).status_code == 200
    error_of(service.call("GET", "/capabilities/views", key=key), 403, "forbidden")


def test_an_unavailable_postgresql_is_an_error_and_not_a_finding(database: OwnDatabase) -> None:
    with database.service.engine() as engine:
        engine.execute(f"ALTER DATABASE {database.engine_name} WITH ALLOW_CONNECTIONS false".encode())
        try:
            engine.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (database.engine_name,),
            )
            for name in ("serializable_isolation", "views", "streaming"):
                error_of(database.call("GET", f"/capabilities/{name}"), 503, "engine_unavailable")
        finally:
            engine.execute(f"ALTER DATABASE {database.engine_name} WITH ALLOW_CONNECTIONS true".encode())
    assert probe(database, "views")["supported"]


def test_temporary_schemas_of_a_crash_are_removed_by_the_next_probe(service: Service) -> None:
    database = new_database(service)
    young, old = new_schema_name(), "plainsql_temporary_60000000_0123456789abcdef"
    look_alike = "plainsql_temporary_60000000_0123456789abcdeg"
    with database.as_owner() as engine:
        for name in (young, old, look_alike):
            engine.execute(f"create schema {name}".encode())
            engine.execute(f"create table {name}.left_behind ()".encode())
    listed = database.call("GET", "/tables?detail=names").json()["tables"]
    assert [table["schema"] for table in listed] == [look_alike]
    assert probe(database, "atomic_transactions")["supported"]
    assert {name for kind, name in database.objects() if kind == "schema"} == {young, look_alike}


async def test_probes_at_once_wait_for_each_other(database: OwnDatabase) -> None:
    answers = await asyncio.gather(
        *(asyncio.to_thread(probe, database, "serializable_isolation") for _ in range(6)),
        *(asyncio.to_thread(probe, database, "triggers") for _ in range(6)),
    )
    assert all(each["supported"] for each in answers)
