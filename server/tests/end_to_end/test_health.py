"""GET / and GET /health, and what happens when a part that the service needs is away."""

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from plainsql_server.core.credential import new_key
from server.tests import forks
from server.tests.end_to_end.error_shape import error_of
from server.tests.service import Service, running_service

pytestmark = pytest.mark.slow

# Look-ups are trusted for a second and a health check takes two; the rest is for a busy machine.
NOTICED_WITHIN_S = 60
NOWHERE = "host=127.0.0.1 port=1"


@pytest.fixture(scope="module")
def fragile() -> Iterator[Service]:
    """A service of its own, whose parts are taken away and given back; it does not wait long for a cell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAINSQL_CONNECT_TIMEOUT_MS", "1000")
        with running_service() as service:
            yield service


def wait_for(ask: Callable[[], httpx.Response], status: int) -> httpx.Response:
    end = time.monotonic() + NOTICED_WITHIN_S
    while (response := ask()).status_code != status and time.monotonic() < end:
        time.sleep(0.05)
    assert response.status_code == status, response.text
    return response


@contextmanager
def cell_at(service: Service, conninfo: str) -> Iterator[None]:
    """The only cell is reached at another address for the length of the block."""
    with service.engine("plainsql_directory") as directory:
        before = directory.execute("SELECT conninfo FROM cells").fetchone()
        assert before is not None
        directory.execute("UPDATE cells SET conninfo = %s", (conninfo,))
        try:
            yield
        finally:
            directory.execute("UPDATE cells SET conninfo = %s", before)


@contextmanager
def directory_closed(service: Service) -> Iterator[None]:
    """Nobody reaches the directory for the length of the block."""
    with service.engine("postgres") as engine:
        engine.execute("ALTER DATABASE plainsql_directory WITH ALLOW_CONNECTIONS false")
        try:
            engine.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = 'plainsql_directory'"
            )
            yield
        finally:
            engine.execute("ALTER DATABASE plainsql_directory WITH ALLOW_CONNECTIONS true")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_the_banner_has_the_fields_of_the_contract(service: Service) -> None:
    banner = service.call("GET", "/", key=None).json()
    assert set(banner) == {
        "service", "version", "routes", "docs", "data_url", "control_url", "alias_url", "request_id",
    }  # fmt: skip
    assert banner["service"] == "plainsql"
    assert banner["data_url"] == service.data_url
    assert banner["control_url"] == service.control_url
    assert banner["alias_url"] == service.dev["alias_url"]
    assert {(route["method"], route["path"]) for route in banner["routes"]} >= {
        ("POST", "/v1/query"), ("POST", "/query"), ("GET", "/"), ("GET", "/health"),
    }  # fmt: skip
    assert all(set(route) == {"method", "path", "purpose"} and route["purpose"] for route in banner["routes"])


def test_every_route_that_the_banner_lists_is_there(service: Service) -> None:
    for url in (service.data_url, service.control_url):
        for route in service.http.get(url).json()["routes"]:
            path = route["path"].replace("{name}", "http")
            response = service.http.request(route["method"], url + path)
            # The names of the console's files contain hashes.
            assert response.status_code not in (404, 405) or "The console has no such file" in response.text


def test_a_healthy_service_reports_ok_on_both_planes(service: Service) -> None:
    for url, checks in ((service.data_url, {"engine", "directory"}), (service.control_url, {"directory"})):
        response = service.http.get(f"{url}/health")
        health = response.json()
        assert (response.status_code, health["status"]) == (200, "ok"), health
        assert set(health) == {"status", "version", "uptime_s", "checks", "request_id"}
        assert set(health["checks"]) >= checks
        assert set(health["checks"].values()) == {"ok"}
        assert isinstance(health["uptime_s"], int)
        assert response.headers["x-request-id"] == health["request_id"]


def test_a_liveness_check_depends_on_no_other_component(service: Service) -> None:
    health = service.call("GET", "/health", key=None, params={"live": ""}).json()
    assert (health["status"], health["checks"]) == ("ok", {})


def test_health_reveals_nothing_about_customers(service: Service) -> None:
    text = service.call("GET", "/health", key=None).text + service.call("GET", "/", key=None).text
    assert service.dev["postgres"]["database"] not in text
    assert service.dev["postgres"]["socket"] not in text
    assert service.api_key not in text


def test_an_unavailable_cell_is_503_and_the_service_recovers_with_it(fragile: Service) -> None:
    with cell_at(fragile, NOWHERE):
        for ask in (lambda: fragile.post_query("select 1"), lambda: fragile.post_text("select 1")):
            error = error_of(wait_for(ask, 503), 503, "engine_unavailable")
            assert (error["retryable"], error["outcome"]) == (True, "not_executed")
            assert error["retry_after_ms"] > 0
            assert "127.0.0.1" not in str(error), "where a cell is, is for the log"
        health = wait_for(lambda: fragile.call("GET", "/health", key=None), 503)
        assert health.json()["status"] == "unavailable"
        assert health.json()["checks"]["engine"] == "engine_unavailable"
        assert health.json()["checks"]["directory"] == "ok"
        assert int(health.headers["retry-after"]) > 0
        assert fragile.call("GET", "/health?live", key=None).status_code == 200
    assert wait_for(lambda: fragile.post_query("select 1"), 200).json()["success"]
    wait_for(lambda: fragile.call("GET", "/health", key=None), 200)


def test_a_cell_that_does_not_answer_is_503_within_seconds(fragile: Service, silent_port: int) -> None:
    with cell_at(fragile, f"host=127.0.0.1 port={silent_port}"):
        error_of(wait_for(lambda: fragile.post_query("select 1"), 503), 503, "engine_unavailable")
    assert wait_for(lambda: fragile.post_query("select 1"), 200).json()["success"]


def test_an_unavailable_directory_is_503_and_the_service_recovers_with_it(fragile: Service) -> None:
    assert fragile.query("select 1")["success"]
    with directory_closed(fragile):
        unknown = new_key().text
        response = fragile.call("POST", "/v1/query", key=unknown, json={"sql": "select 1"})
        error = error_of(response, 503, "directory_unavailable")
        assert (error["retryable"], error["outcome"]) == (True, "not_executed")
        error_of(wait_for(lambda: fragile.post_query("select 1"), 503), 503, "directory_unavailable")
        for url in (fragile.data_url, fragile.control_url):
            health = fragile.http.get(f"{url}/health")
            assert health.status_code == 503
            assert health.json()["checks"]["directory"] == "directory_unavailable"
    assert wait_for(lambda: fragile.post_query("select 1"), 200).json()["success"]


def test_a_connection_that_the_engine_ends_mid_statement_is_503_with_an_unknown_or_rolled_back_outcome(
    fragile: Service,
) -> None:
    response = fragile.post_query("select pg_terminate_backend(pg_backend_pid())")
    assert response.status_code == 503
    assert response.json()["error"]["outcome"] in ("unknown", "rolled_back")
    assert fragile.query("select 1")["success"]


@pytest.mark.parametrize("plane", ["data_url", "control_url"])
def test_a_directory_that_is_down_makes_a_process_unready_and_leaves_it_live(fragile: Service, plane: str) -> None:
    url = fragile.dev[plane]
    assert fragile.http.get(f"{url}/health/ready").json()["checks"] == {"directory": "ok"}
    with directory_closed(fragile):
        unready = wait_for(lambda: fragile.http.get(f"{url}/health/ready"), 503)
        assert (unready.json()["status"], unready.json()["checks"]) == (
            "unavailable",
            {"directory": "directory_unavailable"},
        )
        live = fragile.http.get(f"{url}/health/live")
        assert (live.status_code, live.json()["status"], live.json()["checks"]) == (200, "ok", {})
        assert asked_health(url).returncode == 0
        unready_code = asked_health(url, "--ready")
        assert (unready_code.returncode, unready_code.stderr) == (1, f"Error: {url}/health/ready returned 503.\n")
    wait_for(lambda: fragile.http.get(f"{url}/health/ready"), 200)
    assert asked_health(url, "--ready").stdout == "ready\n"


def asked_health(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return forks.run(["health", *arguments], os.environ)


def test_a_cell_that_is_down_makes_no_process_unready(fragile: Service, silent_port: int) -> None:
    for conninfo in (NOWHERE, f"host=127.0.0.1 port={silent_port}"):
        with cell_at(fragile, conninfo):
            wait_for(lambda: fragile.call("GET", "/health", key=None), 503)
            assert fragile.call("GET", "/health/ready", key=None).status_code == 200
        wait_for(lambda: fragile.call("GET", "/health", key=None), 200)


def test_the_health_command_asks_the_data_plane_of_the_settings_and_says_if_nothing_answers(service: Service) -> None:
    words = shlex.split((service.folder / "operator.env").read_text(), comments=True)
    own = {**os.environ, **dict(word.split("=", 1) for word in words if "=" in word)}
    live = forks.run(["health"], own)
    assert (live.stdout, live.stderr) == ("live\n", "")
    silent = forks.run(["health"], {**own, "PLAINSQL_DATA_PORT": "1"})
    assert (silent.returncode, silent.stderr) == (
        1,
        "Error: https://127.0.0.1:1 does not answer: [Errno 111] Connection refused.\n",
    )


def test_the_health_command_imports_no_server() -> None:
    heavy = "'uvicorn', 'psycopg', 'httpx', 'alembic', 'asyncio'"
    code = f"import sys, plainsql_server.cli.health; print([name for name in ({heavy},) if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
