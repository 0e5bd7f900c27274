"""A process that serves by itself, and its signals: what its handlers do, and what they leave to a thread."""

import asyncio
import logging
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from uvicorn.supervisors.multiprocess import SIGNALS

from plainsql_server.http.server import server as server_module
from plainsql_server.http.server.server import Server
from plainsql_server.http.server.workers import Reload, Workers
from server.tests.processes import wait_for

pytestmark = pytest.mark.unit

LIMIT_S = 30.0


@pytest.fixture
def server() -> Server:
    return Server(uvicorn.Config("server.tests.http.no_application", log_config=None))


@pytest.fixture
def workers(server: Server) -> Iterator[Workers]:
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with socket.socket() as shared:
        yield Workers(server.config, [shared], ())
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def reload(workers: Workers, server: Server) -> Iterator[Reload]:
    created = Reload(workers, server)
    created.start()
    yield created
    created.finish()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A new descriptor is the lowest that is free, and these are in use.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_signal_that_stops_a_server_reaches_its_successor_at_once(
    reload: Reload, workers: Workers, server: Server
) -> None:
    assert not reload.is_done
    assert not workers.should_exit.is_set()
    # The server finishes what it has begun only later.
    server.handle_exit(signal.SIGTERM, None)
    assert workers.should_exit.is_set()


def test_a_process_that_cannot_start_a_successor_reloads_later(
    reload: Reload, caplog: pytest.LogCaptureFixture
) -> None:
    def failures() -> int:
        return caplog.text.count("Not reloaded")

    with caplog.at_level(logging.ERROR, logger="uvicorn.error"), no_descriptor_left():
        reload.on_signal()
        wait_for(lambda: failures() == 1, LIMIT_S, lambda: caplog.text)
        reload.on_signal()
        wait_for(lambda: failures() == 2, LIMIT_S, lambda: caplog.text)
    assert "Can't start a process" in caplog.text


def test_the_handler_of_a_signal_starts_no_thread(reload: Reload) -> None:
    """It may have interrupted code that holds a lock for that."""
    before = set(threading.enumerate())
    reload.on_signal()
    assert set(threading.enumerate()) <= before


async def test_a_signal_ends_a_server_that_sleeps(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_DATE_EVERY_S", 3_600)
    server._loop = asyncio.get_running_loop()
    serving = asyncio.create_task(server.main_loop())
    await asyncio.sleep(0)
    threading.Thread(target=server.handle_exit, args=(signal.SIGTERM, None)).start()
    await asyncio.wait_for(serving, LIMIT_S)


async def test_an_idle_server_looks_at_the_clock_once_a_second(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    async def on_tick(_: Server, counter: int) -> bool:
        ticks.append(counter)
        return len(ticks) == 3

    monkeypatch.setattr(Server, "on_tick", on_tick)
    began_s = time.monotonic()
    await server.main_loop()
    # At each one, uvicorn sets the date.
    assert (time.monotonic() - began_s >= 1.9, ticks) == (True, [0, 0, 0])
