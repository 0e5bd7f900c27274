"""A database is replaced by its backup while clients read and write it, over several processes of the data plane."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import psycopg
import pytest

from plainsql_server.engine.admin import backups
from plainsql_server.engine.admin.backups import frozen
from server.tests import plain_http
from server.tests.operations.stage import Stage
from server.tests.postgres import SUPERUSER
from server.tests.service import Service, running_service

pytestmark = pytest.mark.chaos

_READERS, _WRITERS = 2, 2


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service("--no-tls", workers=2) as running:
        yield running


@dataclass
class Traffic:
    """What clients saw: each on a connection of its own for every request, so that all processes are met."""

    service: Service
    stop: threading.Event = field(default_factory=threading.Event)
    # What was read by each reader, in order; and which writes were acknowledged after the restored rows were seen.
    seen: list[list[str]] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    refused: list[httpx.Response] = field(default_factory=list)
    restored: threading.Event = field(default_factory=threading.Event)

    def post(self, sql: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.service.api_key}"}
        url = f"{self.service.data_url}/v1/query"
        return plain_http.post(url, headers=headers, json={"sql": sql}, timeout=60)

    def read(self) -> None:
        mine: list[str] = []
        self.seen.append(mine)
        while not self.stop.is_set():
            answer = self.post("select string_agg(distinct content, ',') || count(*) as it from t")
            if answer.status_code == 200 and answer.json()["success"]:
                mine.append(answer.json()["rows"][0]["it"])
                if mine[-1] == "restored20000":
                    self.restored.set()
            else:
                self.refused.append(answer)

    def write(self, number: int) -> None:
        while not self.stop.is_set():
            number += _WRITERS
            after = self.restored.is_set()
            answer = self.post(f"insert into written values ({number})")
            if answer.status_code == 200 and answer.json()["success"]:
                if after:
                    self.kept.add(number)
            else:
                self.refused.append(answer)


def test_clients_see_either_the_old_or_the_new_content(service: Service, tmp_path: Path) -> None:
    service.query("create table t as select 'restored' as content, g from generate_series(1, 20000) g")
    service.query("create table written (n int)")
    file = tmp_path / "main.backup"
    service.operate("backup", "--org", "dev", "main", "--output", str(file))
    service.query("update t set content = 'replaced'")
    traffic = Traffic(service)
    with clients(traffic):
        service.operate("restore", "--org", "dev", "main", "--replace", "--input", str(file))
        assert traffic.restored.wait(30)
    for seen in traffic.seen:
        assert set(seen) <= {"replaced20000", "restored20000"}
        assert seen == sorted(seen), "nobody who saw the new content may see the old again"
        assert seen[-1] == "restored20000"
    assert {answer.status_code for answer in traffic.refused} <= {200, 503}
    codes = {answer.json()["error"]["code"] for answer in traffic.refused}
    assert codes <= {"engine_unavailable", "connection_lost", "admin_shutdown", "outcome_unknown"}, codes
    found = {row["n"] for row in service.query("select n from written", max_rows=100_000)["rows"]}
    assert traffic.kept
    assert traffic.kept <= found


@contextmanager
def clients(traffic: Traffic) -> Iterator[None]:
    """Readers and writers for the length of a block."""
    threads = [threading.Thread(target=traffic.read) for _ in range(_READERS)]
    threads += [threading.Thread(target=traffic.write, args=(number,)) for number in range(_WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        traffic.stop.set()
        for thread in threads:
            thread.join(60)


async def test_no_customer_can_delay_a_backup_for_long(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that writes and does not end prevents a safe snapshot."""
    monkeypatch.setattr(backups, "_SAFE_SNAPSHOT_MS", 300)
    engine_name, owner, _ = stage.names()
    cell = (stage.postgres.conninfo, SUPERUSER, engine_name, owner)
    async with frozen(*cell) as source:
        assert source.is_serial
    with stage.postgres.connect(owner, engine_name) as holder:
        holder.execute("create table t (a int)")
        holder.execute("begin isolation level serializable")
        holder.execute("insert into t values (1)")
        async with frozen(*cell) as source:
            assert not source.is_serial
            cursor = await source.connection.execute("show statement_timeout")
            assert await cursor.fetchone() == ("0",)
        holder.execute("rollback")


async def test_nobody_is_waited_for_on_a_cluster_of_our_own(stage: Stage) -> None:
    """As on a spare cluster, where a transaction is prepared in another database, which can't be ended."""
    engine_name, owner, _ = stage.names()
    with stage.postgres.connect() as holder:
        holder.execute("begin isolation level serializable")
        holder.execute("select pg_current_xact_id()")
        # Otherwise, it waits for 20 s.
        alone = frozen(stage.postgres.conninfo, SUPERUSER, engine_name, owner, is_ours=True)
        async with asyncio.timeout(15), alone as source:
            assert source.is_serial
        holder.execute("rollback")


def test_requests_with_cached_lookups_are_fenced_off_until_the_caches_expire(stage: Stage, tmp_path: Path) -> None:
    """As a node would be that has not heard of the change: its connections end, and new ones are refused."""
    with stage.owner() as owner:
        owner.execute("create table t (a int)")
    file = stage.backup(tmp_path / "main.backup")
    engine_name, role, _ = stage.names()
    slow = replace(stage, settings={"PLAINSQL_DIRECTORY_GRACE_MS": "4000"})
    with stage.postgres.connect(role, engine_name) as stale:
        restoring = slow.start("restore", "--org", "acme", "main", "--replace", "--input", str(file))
        while stage.names()[0] == engine_name:
            assert restoring.poll() is None
            time.sleep(0.02)
        with pytest.raises(psycopg.OperationalError):
            stale.execute("insert into t values (1)")
        with pytest.raises(psycopg.OperationalError, match="not currently accepting connections"):
            stage.postgres.connect(role, engine_name)
        assert restoring.poll() is None
        assert restoring.wait(60) == 0
    with stage.postgres.connect(role, engine_name) as again:
        assert again.execute("select count(*) from t").fetchone() == (0,)
