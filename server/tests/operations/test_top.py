"""`plainsql-server top` and `status`, with statements that run on a real service."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from plainsql_server.operations.files.machine_memory import machine_memory_bytes
from plainsql_server.operations.files.sizing import max_connections
from server.tests import forks
from server.tests.service import Service, running_service

pytestmark = pytest.mark.slow

_WAIT_S = 60.0


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service("--no-tls") as running:
        yield running


def environment(service: Service) -> dict[str, str]:
    postgres = service.dev["postgres"]
    dsn = f"host={postgres['socket']} port={postgres['port']} user={postgres['superuser']} dbname=plainsql_directory"
    return {**os.environ, "PLAINSQL_DIRECTORY_DSN": dsn, "PLAINSQL_DATA_URL": service.data_url, "LINES": "24",
            "PLAINSQL_CONTROL_URL": service.control_url, "COLUMNS": "160"}  # fmt: skip


def operate(service: Service, *arguments: str, exit_code: int = 0) -> "subprocess.CompletedProcess[str]":
    ended = forks.run(arguments, environment(service), timeout=60)
    assert ended.returncode == exit_code, (ended.stdout, ended.stderr)
    assert "Traceback" not in ended.stderr
    return ended


@contextmanager
def running(service: Service, sql: str, *params: str) -> Iterator[list[httpx.Response]]:
    """A statement that runs meanwhile, and its answer after the block."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(service.post_query(sql, *params)))
    thread.start()
    with service.engine("postgres") as engine:
        end_s = time.monotonic() + _WAIT_S
        seen = "select from pg_stat_activity where state = 'active' and query like %s and pid <> pg_backend_pid()"
        while engine.execute(seen, (f"{sql[:20]}%",)).rowcount == 0:
            assert time.monotonic() < end_s
            time.sleep(0.02)
    try:
        yield answers
    finally:
        thread.join(_WAIT_S)


def top(service: Service, *options: str) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = json.loads(operate(service, "top", "--json", *options).stdout)["statements"]
    return shown


def test_top_shows_a_statement_by_organization_without_its_parameters(service: Service) -> None:
    with running(service, "select pg_sleep(60), $1::text /* \x1b[31mred */", "the secret") as answers:
        shown = operate(service, "top", "--once").stdout
        (statement,) = [each for each in top(service) if "pg_sleep(60)" in each["sql"]]
        refused = operate(service, "top", "--cancel", "1", exit_code=1)
        cancelled = operate(service, "top", "--cancel", str(statement["pid"]))
    assert (statement["organization"], statement["database"], statement["role"]) == ("dev", "main", "owner")
    assert (statement["state"], statement["waits_for"]) == ("active", "Timeout")
    assert "the secret" not in shown
    assert "\x1b" not in shown
    assert "PID" in shown.splitlines()[0]
    assert "No customer backend" in refused.stderr
    assert str(statement["pid"]) in cancelled.stderr
    assert answers[0].json()["error"]["code"] == "query_canceled"


def test_only_a_customers_backend_can_be_ended(service: Service) -> None:
    with service.engine("postgres") as engine:
        ours = engine.info.backend_pid
        for option in ([], ["--terminate"]):
            assert "No customer backend" in operate(service, "top", "--cancel", str(ours), *option, exit_code=1).stderr
        others = engine.execute("select pid from pg_stat_activity where backend_type <> 'client backend'").fetchall()
        operate(service, "top", "--cancel", str(others[0][0]), exit_code=1)
        assert engine.execute("select 1").fetchone() == (1,)


def test_a_statement_that_traps_its_cancel_can_be_terminated(service: Service) -> None:
    trap = "do $$ begin loop begin perform pg_sleep(30); exception when query_canceled then null; end; end loop; end $$"
    with running(service, trap) as answers:
        (statement,) = [each for each in top(service) if "query_canceled" in each["sql"]]
        operate(service, "top", "--cancel", str(statement["pid"]), "--terminate")
    assert answers[0].json()["success"] is False
    assert [each for each in top(service) if each["pid"] == statement["pid"]] == []


def test_top_on_a_terminal_refreshes_until_ctrl_c(service: Service) -> None:
    with running(service, "select pg_sleep(8), 'drawn'"):
        screen, code = watch(service, [b"pg_sleep(8)"] * 3)
    assert screen.count(b"\x1b[H") >= 3
    assert b"ORGANIZATION" in screen
    assert code == 0


def watch(service: Service, expected: list[bytes]) -> tuple[bytes, int]:
    """What `top` draws on a terminal until it has shown that so many times, and how it ends after Ctrl-C."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "plainsql_server", "top", "--every", "0.2"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment(service))
    os.close(slave)
    screen = b""
    end_s = time.monotonic() + _WAIT_S
    while screen.count(expected[0]) < len(expected) and time.monotonic() < end_s:
        if select.select([master], [], [], 0.2)[0]:
            screen += os.read(master, 1 << 16)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        # Read on: who writes to a terminal that nobody reads waits.
        if select.select([master], [], [], 0.1)[0]:
            with suppress(OSError):
                screen += os.read(master, 1 << 16)
    os.close(master)
    return screen, process.wait(30)


def test_status_shows_cells_databases_connections_and_planes(service: Service) -> None:
    service.query("select 1")
    status = json.loads(operate(service, "status", "--json").stdout)
    (cell,) = status["cells"]
    assert (cell["name"], cell["databases"], cell["problem"]) == ("dev", {"ready": 1}, None)
    assert 0 < cell["view"]["tenants"] <= cell["view"]["connections"] < cell["view"]["max_connections"]
    assert cell["view"]["max_connections"] == max_connections(machine_memory_bytes())
    assert {plane["name"]: plane["status"] for plane in status["planes"]} == {"data": "ok", "control": "ok"}
    shown = operate(service, "status").stdout
    assert f"of {cell['view']['max_connections']}" in shown
    assert "1 ready" in shown


def test_status_reports_unreachable_parts_and_still_shows_the_rest(service: Service) -> None:
    with service.engine("plainsql_directory") as directory:
        directory.execute("insert into cells values ('cell_far', 'far', 'host=/nowhere', 'admin', 'draining')")
    try:
        shown = operate(service, "status").stdout
        assert "The cell far does not respond" in shown
        assert f"of {max_connections(machine_memory_bytes())}" in shown
        assert "The cell far does not respond" in operate(service, "top", "--once").stdout
        lost = operate(service, "top", "--cancel", "1", exit_code=1).stderr
        assert "No customer backend has PID 1. The cell far does not respond" in lost
        nowhere = operate(service, "top", "--cancel", "1", "--cell", "near", exit_code=1).stderr
        assert "There is no cell 'near'" in nowhere
        # Ending a statement must not require the cell that is down.
        with running(service, "select pg_sleep(60), 'ended'") as answers:
            (statement,) = [each for each in top(service) if "'ended'" in each["sql"]]
            operate(service, "top", "--cancel", str(statement["pid"]))
        assert answers[0].json()["error"]["code"] == "query_canceled"
    finally:
        with service.engine("plainsql_directory") as directory:
            directory.execute("delete from cells where id = 'cell_far'")
