"""A transaction whose answer arrives in parts: libpq reads no message on the lane that has not arrived whole.

It would make space for all of it and read for as long as the server keeps up, past the valve that limits how much of a
result is in memory.
"""

import array
import asyncio
import fcntl
import os
import re
import socket
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import SocketIO

import pytest

from plainsql_server.core.errors import ServiceError
from plainsql_server.engine.connection.connection import Connection
from server.tests.lane.exchange_bench import CONVERT, DONE, WAITING, Bench, bench_at, bench_on
from server.tests.postgres import Postgres
from server.tests.tls_cell import TlsCell, running_tls_cell

pytestmark = pytest.mark.compiled

LARGE_BYTES = 150_000
# More than the answers to `begin`, less than the buffer that libpq starts with.
FIRST_BYTES = 5_000
# Columns whose values have, every eight bytes, what also begins the answer to a statement.
_FIRSTS = ", ".join(["'aaa2'"] * 150)


class Parts:
    """The answer of a server, passed on to libpq part by part."""

    def __init__(self, connection: Connection) -> None:
        self._descriptor = connection.socket
        self._engine = socket.socket(fileno=os.dup(connection.socket))
        self._engine.setblocking(True)
        libpqs_end, self._our_end = socket.socketpair()
        libpqs_end.setblocking(False)
        os.dup2(libpqs_end.fileno(), connection.socket, inheritable=False)
        libpqs_end.close()

    def answer(self) -> bytes:
        """All of what the server sends."""
        answer = b""
        while not answer.endswith((b"Z\0\0\0\5I", b"Z\0\0\0\5E")):
            answer += self._engine.recv(1 << 20)
        return answer

    def records(self, count: int) -> list[bytes]:
        """That many records of TLS."""
        with self._engine.makefile("rb", buffering=0) as file:
            records = []
            for _ in range(count):
                head = _exactly(file, 5)
                records.append(head + _exactly(file, int.from_bytes(head[3:])))
            return records

    def pass_on(self, part: bytes) -> None:
        self._our_end.sendall(part)

    def unread_bytes(self) -> int:
        """How much of it libpq has not read."""
        size = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, size)
        return size[0]

    def close(self) -> None:
        self._engine.setblocking(False)
        os.dup2(self._engine.fileno(), self._descriptor, inheritable=False)
        self._engine.close()
        self._our_end.close()


def _exactly(file: SocketIO, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += file.read(size - len(data)) or b""
    return data


@contextmanager
def parts_of(bench: Bench) -> Iterator[Parts]:
    bench.connection.unwatch()
    parts = Parts(bench.connection)
    try:
        yield parts
    finally:
        bench.connection.unwatch()
        parts.close()


def read_in_two(bench: Bench, parts: Parts, answer: bytes, cut: int) -> int:
    """Has the lane read what comes before the cut, and the rest if it still waits then. Returns the progress."""
    parts.pass_on(answer[:cut])
    progress: int = bench.exchange.read_arrival()
    parts.pass_on(answer[cut:])
    return bench.exchange.read_arrival() if progress == WAITING else progress


@pytest.mark.parametrize(
    "sql",
    [
        f"select repeat('x', {LARGE_BYTES}) as x",
        # One of them has such a value where the first part ends.
        *[f"select '{'y' * shift}', {_FIRSTS}, repeat('x', {LARGE_BYTES})" for shift in range(8)],
    ],
    ids=["text", *[f"firsts {shift}" for shift in range(8)]],
)
async def test_the_rest_of_a_row_is_not_read(postgres: Postgres, sql: str) -> None:
    async with bench_on(postgres) as bench:
        assert bench.send(bench.transaction("select 1 as a", sql, "select 2 as b")) == WAITING
        with parts_of(bench) as parts:
            answer = parts.answer()
            progress = read_in_two(bench, parts, answer, FIRST_BYTES)
            assert (progress, bench.exchange.reason_name) == (CONVERT, "large")
            assert parts.unread_bytes() == len(answer) - FIRST_BYTES
            await bench.adopt()
        assert bench.connection.is_idle


async def test_the_rest_of_an_error_is_not_read(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        assert bench.send(bench.transaction("select 1 as a", f"select repeat('x', {LARGE_BYTES})::int as x")) == WAITING
        with parts_of(bench) as parts:
            answer = parts.answer()
            parts.pass_on(answer[:FIRST_BYTES])
            assert bench.exchange.read_arrival() == WAITING
            parts.pass_on(answer[FIRST_BYTES:])
            assert bench.exchange.read_arrival() == CONVERT
            assert parts.unread_bytes() == len(answer) - FIRST_BYTES
            with pytest.raises(ServiceError, match="invalid input syntax"):
                await bench.read_rest()
        await bench.roll_back()
        assert bench.connection.is_idle


async def test_a_commit_that_was_answered_with_rollback_is_handed_over(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        assert bench.send(bench.transaction("select 1 as a")) == WAITING
        with parts_of(bench) as parts:
            answer = parts.answer()
            assert b"C\0\0\0\x0bCOMMIT\0" in answer
            parts.pass_on(answer.replace(b"C\0\0\0\x0bCOMMIT\0", b"C\0\0\0\x0dROLLBACK\0"))
            assert (bench.exchange.read_arrival(), bench.exchange.reason_name) == (CONVERT, "error")
            await bench.read_rest()


async def test_results_that_arrive_one_by_one_stay_on_the_lane(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        sql = "select $1::int as a"
        await bench.prepare(sql, 1)
        for texts in (False, True):
            statements = [f"select {n} as a" if texts else (sql, n) for n in range(16)]
            assert bench.send(bench.transaction(*statements)) == WAITING
            with parts_of(bench) as parts:
                # Up to each CommandComplete, as the server flushes.
                flushed = re.findall(rb".*?C\0\0\0.[A-Z 01]+\0", parts.answer(), re.DOTALL)
                assert len(flushed) == 18
                for part in (flushed[0] + flushed[1], *flushed[2:-1]):
                    parts.pass_on(part)
                    assert bench.exchange.read_arrival() == WAITING
                    # Its arrival may be announced again.
                    assert bench.exchange.read_arrival() == WAITING
                parts.pass_on(flushed[-1] + b"Z\0\0\0\5I")
                assert bench.exchange.read_arrival() == DONE
            assert [each["rows"] for each in bench.body()["results"]] == [[{"a": n}] for n in range(16)]


async def test_an_answer_may_be_cut_anywhere(postgres: Postgres) -> None:
    async with bench_on(postgres) as bench:
        insert, select = "insert into t values ($1) returning n", "select n from t order by n desc limit $1"
        await bench.prepare("create table t (n int)")
        await bench.prepare(insert, 0)
        await bench.prepare(select, 1)
        cut, size, kept = 0, 1, 0
        while cut < size:
            assert bench.send(bench.transaction((insert, cut), "select 'x' as x", (select, 1))) == WAITING
            with parts_of(bench) as parts:
                answer = parts.answer()
                size = len(answer)
                progress = read_in_two(bench, parts, answer, cut)
                if progress == DONE:
                    kept += 1
                    assert bench.body()["results"][2]["rows"] == [{"n": cut}]
                else:
                    assert (progress, bench.exchange.reason_name) == (CONVERT, "large")
                    await asyncio.wait_for(bench.adopt(), 30)
            assert bench.connection.is_idle
            cut += 1
        # Before and after each statement.
        assert kept >= 4
        assert await bench.run(bench.plan("select count(*)::int as n from t")) == DONE
        assert bench.body()["rows"] == [{"n": size + 1}]


@pytest.fixture(scope="module")
def tls_cell() -> Iterator[TlsCell]:
    with tempfile.TemporaryDirectory(prefix="plainsql-test-") as folder, running_tls_cell(Path(folder)) as cell:
        yield cell


async def test_with_tls_an_answer_may_be_cut_anywhere(tls_cell: TlsCell) -> None:
    async with bench_at(tls_cell.conninfo("admin"), "postgres") as bench:
        cut, size, kept = 0, 1, set()
        between: set[int] = set()
        while cut < size:
            assert bench.send(bench.transaction("select 'a' as a", f"select {cut} as b", "select 'c' as c")) == WAITING
            with parts_of(bench) as parts:
                # One for each statement, and one for COMMIT and the sync.
                records = parts.records(4)
                answer = b"".join(records)
                size = len(answer)
                between |= {cut} & {len(b"".join(records[:count])) for count in range(4)}
                progress = read_in_two(bench, parts, answer, cut)
                if progress == DONE:
                    kept.add(cut)
                    assert bench.body()["results"][1]["rows"] == [{"b": cut}]
                else:
                    assert (progress, bench.exchange.reason_name) == (CONVERT, "large")
                    await asyncio.wait_for(bench.adopt(), 30)
            assert bench.connection.is_idle
            cut += 1
        # A cut between two records does not show.
        assert kept == between
        assert len(kept) >= 3


async def test_with_tls_a_long_record_is_not_read(tls_cell: TlsCell) -> None:
    async with bench_at(tls_cell.conninfo("admin"), "postgres") as bench:
        assert bench.send(bench.transaction("select 1 as a", f"select repeat('x', {LARGE_BYTES})::int as x")) == WAITING
        with parts_of(bench) as parts:
            parts.pass_on(*parts.records(1))
            assert bench.exchange.read_arrival() == WAITING
            (long,) = parts.records(1)
            parts.pass_on(long)
            assert bench.exchange.read_arrival() == CONVERT
            assert parts.unread_bytes() == len(long)
        bench.connection.close()


@pytest.mark.parametrize("size", [1, 1_000, 7_000, 8_192, 16_384, 64_000])
async def test_with_tls_results_of_every_size_end(tls_cell: TlsCell, size: int) -> None:
    async with bench_at(tls_cell.conninfo("admin"), "postgres") as bench:
        text = f"select repeat('x', {size}) as x"
        progress = await bench.run_to_its_end(bench.transaction("select 1 as a", *[text] * 15))
        if size < 8_000:
            assert progress == DONE
            assert [each["rows"] for each in bench.body()["results"][1:]] == [[{"x": "x" * size}]] * 15
        else:
            assert (progress, bench.exchange.reason_name) == (CONVERT, "large")
            await bench.adopt()
        assert bench.connection.is_idle
