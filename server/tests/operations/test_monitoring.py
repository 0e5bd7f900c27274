"""Dashboard and alerts in `deploy/`: loaded by Prometheus itself, and asked of a real data plane."""

import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from plainsql_server.core.observation import CellUpkeep, UpkeepLoad
from plainsql_server.dev.ports import free_port
from plainsql_server.extension_modules import COMPILED
from plainsql_server.metrics import Metrics
from server.tests import plain_http
from server.tests.load import Node, running_node
from server.tests.operations.stage import Stage
from server.tests.postgres import Postgres
from server.tests.programs import need
from server.tests.redis_server import running_redis
from server.tests.service import Service, running_service

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "plainsql-alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "plainsql.json"
_METRIC = re.compile(r"\bplainsql_[a-z_]+\b")
_WAIT_S = 40.0


def promtool(*arguments: str) -> str:
    need("promtool")
    ended = subprocess.run(
        ["promtool", *arguments], cwd=RULES.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_prometheus_takes_the_rules_and_the_sample_configuration() -> None:
    assert "29 rules found" in promtool("check", "rules", RULES.name)
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_each_alert_fires_only_under_its_condition() -> None:
    assert "SUCCESS" in promtool("test", "rules", "plainsql-alerts-test.yml")
    tested = (RULES.parent / "plainsql-alerts-test.yml").read_text()
    for alert in re.findall(r"alert: (\w+)", RULES.read_text()):
        assert tested.count(alert) >= 2, alert


def test_every_alert_has_a_severity_and_an_action() -> None:
    text = RULES.read_text()
    counts = {word: text.count(word) for word in ("alert: ", "severity: ", "summary: ", "action: ")}
    assert len(set(counts.values())) == 1, counts


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[Service, Node, int]]:
    """A data plane with metrics that has answered, refused, streamed and failed some requests."""
    port = free_port()
    with (
        running_service("--no-tls") as service,
        running_redis() as redis,
        running_node(service.directory_dsn, redis_url=redis.url, metrics_port=port) as node,
    ):
        yield service, node, port


def use(service: Service, node: Node) -> None:
    headers = {"Authorization": f"Bearer {service.api_key}"}
    url = f"http://127.0.0.1:{node.port}/v1/query"
    for sql in ("select 1", "select nothing", "/*+ STREAM */ select generate_series(1, 10)"):
        plain_http.post(url, headers=headers, json={"sql": sql})
    plain_http.post(url, headers={"Authorization": "Bearer nobody"}, json={"sql": "select 1"})


def exported(port: int) -> set[str]:
    """The names of all metrics that a process has, as its samples spell them."""
    text = plain_http.get(f"http://127.0.0.1:{port}/metrics").text
    return set(re.findall(r"^(plainsql_[a-z_]+)", text, re.MULTILINE))


def measured() -> list[str]:
    """The names of what only the control plane measures."""
    cell = CellUpkeep(
        "eu-1", True, 1, 1, 0, 0, False, archive_lag_s=0.0, archive_backup_age_s=1.0, rehearsal_age_s=1.0,
        is_rehearsal_failing=False, is_stream_received=True, stream_lag_bytes=0, stream_lag_s=0.0,
        is_stream_lost=False, disk_free_ratio=0.5,
    )  # fmt: skip
    collector = Metrics()
    collector.watch_upkeep(lambda: UpkeepLoad(1.0, [cell], {"planes": 2.0}, 3.0, 4.0, directory_archive_lag_s=0.0))
    samples = [sample.name for family in collector.collect() for sample in family.samples]
    return [name for name in samples if re.search("upkeep|cell|certificate|backup|directory_archive", name)]


def metrics(expression: str) -> set[str]:
    return set(_METRIC.findall(expression))


def expressions() -> list[str]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_every_metric_of_dashboard_and_alerts_is_one_that_the_service_has(
    watched: tuple[Service, Node, int],
) -> None:
    service, node, port = watched
    use(service, node)
    named = set(_METRIC.findall(DASHBOARD.read_text() + RULES.read_text()))
    assert len(named) > 10
    # Without compiled code there is no fast lane.
    optional = set() if COMPILED else {name for name in named if "_lane_" in name}
    assert named - exported(port) - set(measured()) <= optional


def test_every_metric_of_the_service_is_on_the_dashboard_and_in_the_reference(
    watched: tuple[Service, Node, int],
) -> None:
    service, node, port = watched
    use(service, node)
    names = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exported(port)} | set(measured())
    shown = re.sub(r"_bucket\b", "", DASHBOARD.read_text())
    # Which form of the code runs does not change while it runs; `--version` tells it.
    assert {name for name in names if name not in shown} <= {"plainsql_build_info"}


def test_a_cell_is_shown_by_its_name_and_not_by_its_address(watched: tuple[Service, Node, int]) -> None:
    service, node, port = watched
    use(service, node)
    text = plain_http.get(f"http://127.0.0.1:{port}/metrics").text
    assert set(re.findall(r'cell="([^"]*)"', text)) == {"dev"}
    assert "host=" not in text


@contextmanager
def prometheus(metrics_port: int) -> Iterator[str]:
    """A real Prometheus that watches one process, with our rules; its address."""
    need("prometheus")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="plainsql-prometheus-") as name:
        folder = Path(name)
        sample = (RULES.parent / "prometheus.yml").read_text()
        targets = re.sub(r"targets: \[.*\]", f'targets: ["127.0.0.1:{metrics_port}"]', sample)
        (folder / "prometheus.yml").write_text(targets.replace("15s", "1s"))
        (folder / RULES.name).write_text(RULES.read_text())
        command = [
            "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def ask(url: str, expression: str) -> list[dict[str, Any]]:
    """What Prometheus answers to a panel's question. Raises AssertionError if it is none."""
    for variable, value in (("$job", "plainsql"), ("$route", ".*"), ("$__rate_interval", "30s")):
        expression = expression.replace(variable, value)
    found = plain_http.get(f"{url}/api/v1/query", params={"query": expression})
    if found.status_code == 503:
        raise httpx.ConnectError("Prometheus is still starting.")
    response = found.json()
    assert response["status"] == "success", (expression, response)
    result: list[dict[str, Any]] = response["data"]["result"]
    return result


def test_every_panel_shows_something_in_a_real_prometheus(watched: tuple[Service, Node, int]) -> None:
    service, node, port = watched
    with prometheus(port) as url:
        empty, control = set(expressions()), set(measured())
        end_s = time.monotonic() + _WAIT_S
        while empty:
            assert time.monotonic() < end_s, empty
            use(service, node)
            try:
                empty = {expression for expression in empty if not ask(url, expression)}
            except httpx.TransportError:
                # It is still starting.
                time.sleep(0.1)
                continue
            # Nobody fails on our side here, and there is no control plane.
            empty = {
                expression for expression in empty if '5.."' not in expression and not control & metrics(expression)
            }
        rules = plain_http.get(f"{url}/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert len(rules) == 9
        assert all(rule["health"] in ("ok", "unknown") for rule in rules), rules


def test_the_dashboard_has_one_id_for_each_panel_and_no_data_source_of_anybodys() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids) > 20
    sources = {panel["datasource"]["uid"] for panel in dashboard["panels"] if panel["type"] != "row"}
    assert sources == {"${datasource}"}


def test_status_shows_the_queue_of_each_process_on_this_machine(watched: tuple[Service, Node, int]) -> None:
    """One connection for a database: of two statements one runs, and one waits."""
    service, _, _ = watched
    port = free_port()
    settings = {"PLAINSQL_METRICS_PORT": str(port), "PLAINSQL_WORKERS": "2"}
    stage = Stage(Postgres(service.dev["postgres"]["socket"]), service.directory_dsn, settings)
    with running_node(service.directory_dsn, metrics_port=port, pool_max_connections=1) as node:
        # The second process does not run, and so has no queue.
        (process,) = processes(stage)
        assert process == {"port": port, "open_connections": 0, "running": 0, "waiting": 0, "streams": 0}
        busy = {"port": port, "open_connections": 1, "running": 1, "waiting": 0, "streams": 0}
        with asleep(service, node, "select pg_sleep(60)"):
            # Only then does the second statement wait for the first, and not the other way round.
            wait_for(lambda: processes(stage) == [busy])
            with asleep(service, node, "select 1"):
                wait_for(lambda: processes(stage) == [{**busy, "waiting": 1}])
                shown = stage.run("status").stdout.splitlines()[-2:]
                assert shown[0].split("  ")[0] == "METRICS PORT"
                assert shown[1].split() == [str(port), "1", "1", "1", "0"]
        with asleep(service, node, "/*+ STREAM */ select generate_series(1, 3), pg_sleep(20)"):
            wait_for(lambda: [each["streams"] for each in processes(stage)] == [1])


def processes(stage: Stage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(stage.run("status", "--json").stdout)["processes"]
    return found


@contextmanager
def asleep(service: Service, node: Node, sql: str) -> Iterator[None]:
    """A request that is under way for the length of the block; its client goes away then."""
    body = json.dumps({"sql": sql}).encode()
    head = f"POST /v1/query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.api_key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", node.port)) as client:
        client.sendall(head.encode() + body)
        yield


def wait_for(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < end_s
