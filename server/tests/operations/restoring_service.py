"""Both planes over HTTPS, on a cell with an archive, and workers that restore from it, which can be slow."""

import signal
import ssl
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import httpx
import trustme

from server.tests import forks
from server.tests.customers import Customers
from server.tests.documented import comparing
from server.tests.load import Node, running_node
from server.tests.operations.archived_cell import ArchivedCell
from server.tests.processes import wait_for

ENDED = ("done", "failed")
_RESTORED_WITHIN_S = 120.0
_ENDED_WITHIN_S = 90.0
# Each look is a request or a connection, and would keep a restore from the processor.
_LOOK_EVERY_S = 0.05
# A row that is checked takes as long as this role is on the cell: to restore it, in particular.
SLOW = "slow_restores"
_CHECKED = f"""
    create function checked(int) returns boolean language sql as $$
        select case when exists (select from pg_catalog.pg_roles where rolname = '{SLOW}')
            then pg_catalog.pg_sleep(300) is not null else true end $$
"""
# A row that is checked takes as long as there is that role, and goes on then.
CHECKED_LATER = f"""
    create function checked(int) returns boolean language plpgsql as $$ begin
        while exists (select from pg_catalog.pg_roles where rolname = '{SLOW}') loop
            perform pg_catalog.pg_sleep(0.05);
        end loop;
        return true;
    end $$
"""


@dataclass
class Worker:
    """A worker, which a test may stop and kill."""

    process: forks.Process
    output: IO[bytes]

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """When this returns, it has ended."""
        self.process.kill()
        self.process.wait(_ENDED_WITHIN_S)

    def printed(self) -> str:
        self.output.seek(0)
        return self.output.read().decode()


@dataclass
class RestoringService:
    """The service, as customers see it, with one organization, acme."""

    cell: ArchivedCell
    data: Node
    control: Node
    http: httpx.Client
    ca_file: Path
    key: str
    workers: list[Worker] = field(default_factory=list)

    @property
    def data_url(self) -> str:
        return f"https://localhost:{self.data.port}"

    @property
    def control_url(self) -> str:
        return f"https://localhost:{self.control.port}"

    def call(self, method: str, path: str, key: str = "", **arguments: Any) -> httpx.Response:
        """A request to the control plane."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return self.http.request(method, f"{self.control_url}{path}", headers=headers, **arguments)

    def answer(self, method: str, path: str, status: int = 200, **arguments: Any) -> dict[str, Any]:
        response = self.call(method, path, **arguments)
        assert response.status_code == status, response.text
        body: dict[str, Any] = response.json()
        return body

    def refused(self, status: int, code: str, method: str, path: str, **arguments: Any) -> str:
        """The message of an error."""
        response = self.call(method, path, **arguments)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
        return str(response.json()["error"]["message"])

    def query(self, database: str, sql: str) -> list[dict[str, Any]]:
        """The rows of a statement that succeeds, on the data plane.

        A node hears a moment after a restore where the database is now. Until then, it says that it is unavailable.
        """
        headers = {"Authorization": f"Bearer {self.key}"}
        body = {"sql": sql, "database": database}

        answers: list[dict[str, Any]] = []

        def has_heard() -> bool:
            answers.append(self.http.post(f"{self.data_url}/v1/query", headers=headers, json=body).json())
            return bool(answers[-1]["success"]) or answers[-1]["error"]["code"] != "engine_unavailable"

        wait_for(has_heard, 10, lambda: answers[-1], every_s=0.05)
        answer = answers[-1]
        assert answer["success"], answer
        rows: list[dict[str, Any]] = answer["rows"]
        return rows

    def create(self, name: str, *statements: str, key: str = "") -> str:
        """A new database; its id."""
        made = self.answer("POST", "/v1/databases", 201, key=key, json={"name": name})
        for statement in statements:
            self.query(name, statement)
        return str(made["database"]["id"])

    def ask(self, database: str, at: datetime, **fields: Any) -> dict[str, Any]:
        """A restore that is asked for."""
        body = {"at": at.isoformat(), **fields}
        made: dict[str, Any] = self.answer("POST", f"/v1/databases/{database}/restore", 202, json=body)["restore"]
        return made

    def restore(self, restore_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.answer("GET", f"/v1/restores/{restore_id}")["restore"]
        return found

    def ended(self, restore_id: str, within_s: float = _RESTORED_WITHIN_S) -> dict[str, Any]:
        """A restore when it is done or has failed."""
        wait_for(
            lambda: self.restore(restore_id)["state"] in ENDED, within_s, lambda: str(self.restore(restore_id)),
            every_s=_LOOK_EVERY_S,
        )  # fmt: skip
        return self.restore(restore_id)

    def check_left_over(self) -> None:
        """Of a spare cluster, nothing is left. It is removed when its restore is done."""
        wait_for(lambda: self.cell.left_over() == [], 30, lambda: str(self.cell.left_over()))

    def start_worker(self, *options: str, **settings: str) -> Worker:
        """A worker of its own; when the control plane knows of it."""
        stage, folder = replace(self.cell.stage, settings=settings), self.cell.work_folder
        began_at = datetime.now(UTC)
        output = _new_file()
        arguments = ("--archive", str(self.cell.config_folder), "--work-folder", str(folder), *options)
        process = forks.start(("restores", "work", *arguments), stage.environment(), output, Path("/"))
        worker = Worker(process, output)
        self.workers.append(worker)
        seen = "SELECT FROM restore_workers WHERE seen_at > %s"

        def is_seen() -> bool:
            assert worker.is_running(), worker.printed()
            return bool(stage.ask(seen, began_at))

        wait_for(is_seen, 60, lambda: "the worker is not seen", every_s=_LOOK_EVERY_S)
        return worker

    def kill_workers(self) -> None:
        """Those that a test that has failed leaves behind."""
        for worker in self.workers:
            if worker.is_running():
                worker.kill()
            worker.output.close()
        self.workers.clear()


def _new_file() -> IO[bytes]:
    return tempfile.TemporaryFile()


def stop(worker: Worker) -> str:
    """Ends a worker as systemd does. Returns what it has printed, and prints it for a test that fails."""
    worker.send_signal(signal.SIGTERM)
    return wait_for_end(worker)


def wait_for_end(worker: Worker) -> str:
    """What a worker has printed in the end. A second signal could meet it when it no longer handles any."""
    exit_code = worker.process.wait(_ENDED_WITHIN_S)
    text = worker.printed()
    print(text)
    assert exit_code == 0, text
    assert "Traceback" not in text
    return text


def _certificates(folder: Path) -> Mapping[str, str]:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    return {"tls_cert_file": str(folder / "cert.pem"), "tls_key_file": str(folder / "key.pem")}


@contextmanager
def restoring_service(cell: ArchivedCell, folder: Path) -> Iterator[RestoringService]:
    """The planes, without a worker."""
    dsn = cell.stage.dsn
    key = Customers(dsn).new_key("write", "admin", organization="acme")
    common = {**_certificates(folder), "directory_grace_ms": 0}
    with ExitStack() as stack:
        control = stack.enter_context(running_node(dsn, None, "control", **common))
        control_url = f"https://localhost:{control.port}"
        data = stack.enter_context(running_node(dsn, control_url=control_url, **common))
        data_url = f"https://localhost:{data.port}"
        compare = comparing({"data": data_url, "control": control_url})
        trust = ssl.create_default_context(cafile=folder / "ca.pem")
        client = httpx.Client(verify=trust, timeout=60, event_hooks={"response": [compare]})
        with client as http:
            yield RestoringService(cell, data, control, http, folder / "ca.pem", key)


@contextmanager
def paused(service: RestoringService) -> Iterator[Worker]:
    """A worker that does nothing, during the block: restores wait."""
    worker = service.start_worker()
    worker.send_signal(signal.SIGSTOP)
    try:
        yield worker
    finally:
        worker.send_signal(signal.SIGCONT)
        stop(worker)


@contextmanager
def slow(service: RestoringService) -> Iterator[None]:
    """What is restored during the block takes 5 minutes."""
    with service.cell.stage.postgres.connect() as admin:
        admin.execute(f"create role {SLOW}")
        try:
            yield
        finally:
            admin.execute(f"drop role {SLOW}")


def new_database(service: RestoringService, name: str, checked: str = _CHECKED) -> datetime:
    """A database that can be slow. A time at which its only row has a = 1, before it was updated."""
    service.create(name, checked, "create table t (a int check (checked(a)))", "insert into t values (1)")
    point = datetime.now(UTC)
    service.query(name, "update t set a = 2")
    return point


def state(service: RestoringService, restore_id: str) -> tuple[str, int]:
    """The state of a restore, and how often it was claimed."""
    ((found, attempts),) = service.cell.stage.ask("SELECT state, attempts FROM restores WHERE id = %s", restore_id)
    return found, attempts


def wait_until_ended(service: RestoringService, restore_id: str, wanted: Collection[str] = ENDED) -> None:
    """By the directory: it may be another organization's."""
    shown = "SELECT id, state, error_code, error_message FROM restores ORDER BY id"
    wait_for(
        lambda: state(service, restore_id)[0] in wanted, 170, lambda: str(service.cell.stage.ask(shown)),
        every_s=_LOOK_EVERY_S,
    )  # fmt: skip


def is_filling(service: RestoringService) -> bool:
    """Whether a restore is checking the row."""
    found = "select from pg_stat_activity where application_name = 'plainsql-restore' and wait_event = 'PgSleep'"
    with service.cell.stage.postgres.connect() as admin:
        return admin.execute(found).rowcount > 0


def wait_until_filling(service: RestoringService) -> None:
    wait_for(lambda: is_filling(service), 120, lambda: "nothing is restored", every_s=_LOOK_EVERY_S)


def expire_lease(service: RestoringService, restore_id: str) -> None:
    """What a minute does."""
    service.cell.stage.ask("UPDATE restores SET alive_until = now() WHERE id = %s", restore_id)


def expire_drafts(service: RestoringService) -> None:
    """What two minutes do to what workers have left behind that were killed. No other may be filling one."""
    service.cell.stage.ask("UPDATE databases SET work_after = now() WHERE state = 'deleting' AND restores_to IS NULL")


def nothing_is_left(service: RestoringService) -> None:
    """No spare cluster; no draft in the directory, and no database that it does not know on the cell."""
    drafts = "SELECT name FROM databases WHERE state = 'deleting' AND restores_to IS NULL"
    stage = service.cell.stage
    wait_for(
        lambda: stage.ask(drafts) == [], 150, lambda: f"drafts are left: {stage.ask(drafts)}", every_s=_LOOK_EVERY_S
    )
    assert stage.on_cell() == {"leaked": set(), "lost": set()}
    service.check_left_over()


def rows(service: RestoringService, name: str) -> list[int]:
    return [row["a"] for row in service.query(name, "select a from t")]


def now_text() -> str:
    """The time, as JSON has it."""
    return datetime.now(UTC).isoformat()
