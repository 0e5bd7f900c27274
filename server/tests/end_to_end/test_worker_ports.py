"""Each process of a data plane has a port of its own, and the alias sends a database's requests to one process."""

import asyncio
import errno
import itertools
import os
import pwd
import re
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg
import pytest

from plainsql_server.control_plane import databases, organizations
from plainsql_server.core.tasks import end
from plainsql_server.dev.alias import nginx_command, write_config
from plainsql_server.dev.ports import free_port, free_ports
from plainsql_server.directory.connection import Directory
from plainsql_server.http.server.workers import keep_port
from plainsql_server.operations.files.alias import Alias
from server.tests import forks, plain_http
from server.tests.alias import CONTROL_URL, found_nginx, running_alias, running_nginx
from server.tests.consistency.faults import wait_until, workers_of
from server.tests.customers import Customers
from server.tests.load import STALL_S, Node, running_node
from server.tests.postgres import Postgres
from server.tests.processes import children_of, wait_for
from server.tests.service import Service

DATABASES = [f"shop-{number}" for number in range(20)]
# How soon the databases of a process that died are answered elsewhere.
MOVED_WITHIN_S = 1.0
# How long that process is dead: several times as long as nginx leaves it alone.
DEAD_FOR_S = 4.0
_LIMIT_S = 60.0
_TIMING = 'add_header Server-Timing "alias;dur=$plainsql_ms" always;'
# So that a response says which process nginx asked.
_SHOWN = {_TIMING: f"{_TIMING} add_header X-Upstream $upstream_addr always;"}
_POOLS = "plainsql_cell_pools{"


@dataclass(frozen=True)
class World:
    """A directory with an organization that has many databases, each with a table `written`."""

    dsn: str
    key: str

    def processes(self) -> dict[int, int]:
        """The ids of the processes in the directory's list, by the port of each."""
        with psycopg.connect(self.dsn) as directory:
            rows = directory.execute("SELECT address, pid FROM data_processes WHERE address IS NOT NULL").fetchall()
        return {int(address.rpartition(":")[2]): pid for address, pid in rows}


@pytest.fixture(scope="module")
def world(postgres: Postgres) -> Iterator[World]:
    with postgres.swept():
        dsn = postgres.fresh_directory()
        customers = Customers(dsn)
        customers.add_cell("local", postgres.conninfo)
        customers.add_organization("acme")
        asyncio.run(create_databases(dsn))
        world = World(dsn, customers.new_key("write", organization="acme"))
        with running_node(dsn) as node:
            for name in DATABASES:
                assert ask(node.port, world.key, name, "create table written (n int not null)").status_code == 200
        yield world


async def create_databases(dsn: str) -> None:
    async with Directory.open(dsn) as directory:
        owner = await organizations.get(directory, "acme")
        await asyncio.gather(*(databases.create(directory, owner.id, name) for name in DATABASES))


@contextmanager
def two_workers(world: World, **settings: object) -> Iterator[tuple[Node, range]]:
    """A node with two processes, and their own ports."""
    ports = free_ports(2)
    with running_node(world.dsn, workers=2, worker_port=ports[0], **settings) as node:
        wait_for(lambda: all(map(is_open, ports)) and set(ports) <= world.processes().keys(), _LIMIT_S, world.processes)
        yield node, ports


def is_open(port: int) -> bool:
    try:
        return plain_http.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def ask(port: int, key: str, database: str, sql: str = "select 1") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}", "X-Database": database}
    return plain_http.post(f"http://127.0.0.1:{port}/v1/query", headers=headers, json={"sql": sql})


def asked_process(response: httpx.Response) -> int:
    """The port of the process that answered: the last one that nginx tried."""
    return int(response.headers["x-upstream"].rpartition(":")[2])


def pools(port: int) -> int:
    """To how many databases a process has connections, by its metrics."""
    lines = plain_http.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(_POOLS))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_shared_port_and_every_process_own_port_answer(world: World, workers: int) -> None:
    ports = free_ports(workers)
    with running_node(world.dsn, workers=workers, worker_port=ports[0]) as node:
        wait_for(lambda: world.processes().keys() == set(ports), _LIMIT_S, world.processes)
        for port in (node.port, *ports):
            wait_for(lambda port=port: is_open(port), _LIMIT_S, lambda port=port: f"{port} is closed")
            assert ask(port, world.key, DATABASES[0]).json()["rows"] == [{"?column?": 1}]
        assert set(world.processes().values()) == set(workers_of(node) if workers > 1 else [node.process.pid])
        assert node.stop() == (0 if workers > 1 else -signal.SIGTERM)
    assert world.processes() == {}


def test_in_dev_the_alias_asks_the_own_port_which_has_the_same_certificate(service: Service) -> None:
    lines = (service.folder / "operator.env").read_text().splitlines()
    (port,) = [line.partition("=")[2] for line in lines if "WORKER_PORT" in line]
    assert service.http.get(f"https://localhost:{port}/health?live").status_code == 200
    assert f"server 127.0.0.1:{port} " in (service.folder / "alias" / "alias.conf").read_text()


def test_a_port_that_another_program_has_is_refused_at_the_start(world: World) -> None:
    with running_node(world.dsn) as other:
        for workers, variable in itertools.product((1, 2), ("WORKER_PORT", "METRICS_PORT")):
            settings = {"PLAINSQL_WORKERS": str(workers), f"PLAINSQL_{variable}": str(other.port)}
            own = {"PLAINSQL_DIRECTORY_DSN": world.dsn, "PLAINSQL_DATA_PORT": str(free_port())}
            ended = forks.run(["data"], {**os.environ, **settings, **own}, timeout=_LIMIT_S)
            assert ended.returncode == 3
            assert f"127.0.0.1:{other.port}: Address already in use" in ended.stderr


def test_a_database_is_served_by_one_process_and_both_serve_some(world: World) -> None:
    metrics = free_ports(2)
    with two_workers(world, metrics_port=metrics[0]) as (_, ports), running_alias(*ports, instead=_SHOWN) as alias:
        homes: dict[str, set[int]] = defaultdict(set)
        for name, _ in itertools.product(DATABASES, range(3)):
            homes[name].add(asked_process(ask(alias, world.key, name)))
        assert all(len(home) == 1 for home in homes.values()), homes
        assert set().union(*homes.values()) == set(ports)
        # None of the processes has a connection to a database of the other.
        used = [pools(port) for port in metrics]
        assert sum(used) == len(DATABASES)
        assert sorted(used) == sorted(sum(home == {port} for home in homes.values()) for port in ports)


def test_a_client_that_comes_to_another_process_is_served_all_the_same(world: World) -> None:
    name = DATABASES[0]
    with two_workers(world) as (node, ports):
        for number, port in enumerate((*ports, node.port)):
            assert ask(port, world.key, name, f"insert into written values ({-1 - number})").status_code == 200
        for port in (*ports, node.port):
            rows = ask(port, world.key, name, "delete from written where n < 0 returning n").json()["rows"]
            assert len(rows) == (3 if port == ports[0] else 0)


@dataclass
class Writes:
    """What one client, which writes to one database without a pause, knows."""

    database: str
    acknowledged: list[int] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    # The process and the time of each answer that acknowledged a write.
    answers: list[tuple[int, float]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def run(self, port: int, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "X-Database": self.database}
        async with plain_http.async_client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            for number in itertools.count():
                body = {"sql": "insert into written values ($1)", "params": [number]}
                # Until there is an answer: the test may end this client at any time.
                self.unknown.add(number)
                response = await client.post("/v1/query", json=body)
                if response.status_code == 200:
                    self.unknown.remove(number)
                    self.acknowledged.append(number)
                    self.answers.append((asked_process(response), time.monotonic()))
                else:
                    assert response.json()["error"]["outcome"] == "unknown", response.text
                    self.refused.append(response.text)
                await asyncio.sleep(0.01)

    def last(self) -> int:
        return self.answers[-1][0] if self.answers else 0

    def answered(self, process: int, after_s: float) -> bool:
        """Whether the last answer is of this process, and later than that."""
        asked, at_s = self.answers[-1]
        return asked == process and at_s > after_s

    def check(self, rows_of: Callable[[str], list[int]]) -> None:
        """Compares what the client knows with what is in the database."""
        rows = rows_of(self.database)
        assert len(rows) == len(set(rows))
        assert set(self.acknowledged) <= set(rows) <= set(self.acknowledged) | self.unknown


@pytest.mark.chaos
async def test_the_databases_of_a_process_that_dies_are_answered_elsewhere_and_return(world: World) -> None:
    with two_workers(world) as (node, ports), running_alias(*ports, instead=_SHOWN) as alias:
        clients = [Writes(name) for name in DATABASES]
        tasks = [asyncio.create_task(client.run(alias, world.key)) for client in clients]
        try:
            await wait_until(lambda: all(len(client.answers) > 5 for client in clients))
            homes = {client.database: client.last() for client in clients}
            dead, other = ports
            pid = world.processes()[dead]
            # A stopped parent starts no replacement, so the worker stays dead long enough to be noticed.
            os.kill(node.process.pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            died_s = time.monotonic()
            moved = [client for client in clients if homes[client.database] == dead]
            assert 0 < len(moved) < len(clients)
            await wait_until(lambda: all(client.answered(other, died_s + DEAD_FOR_S) for client in moved))
            os.kill(node.process.pid, signal.SIGCONT)
            await wait_until(lambda: all(client.last() == dead for client in moved))
        finally:
            os.kill(node.process.pid, signal.SIGCONT)
            await end(*tasks)
        assert world.processes()[dead] in set(workers_of(node)) - {pid}
        gaps_s = {client.database: longest_gap_s(client, died_s) for client in moved}
        assert max(gaps_s.values()) < MOVED_WITHIN_S + STALL_S, gaps_s
        stayed = [client for client in clients if client not in moved]
        assert {process for client in stayed for process, _ in client.answers} == {other}
        # A client has one request at a time, and only one can have been under way there.
        assert [client.refused for client in stayed if client.refused] == []
        assert all(len(client.refused) <= 1 for client in moved), [client.refused for client in moved]
        for client in clients:
            client.check(lambda name: written(world, node.port, name))


def longest_gap_s(client: Writes, since_s: float) -> float:
    """The longest time without an answer since then."""
    times_s = [since_s, *(at_s for _, at_s in client.answers if at_s > since_s)]
    return max(after_s - before_s for before_s, after_s in itertools.pairwise(times_s))


def written(world: World, port: int, database: str) -> list[int]:
    rows = ask(port, world.key, database, "delete from written returning n").json()["rows"]
    return [row["n"] for row in rows]


@pytest.mark.chaos
def test_the_workers_of_a_node_are_replaced_one_by_one_and_keep_their_ports(world: World) -> None:
    with two_workers(world, drain_ms=50) as (node, ports):
        before = world.processes()
        node.process.send_signal(signal.SIGHUP)
        wait_for(lambda: not set(before.values()) & set(workers_of(node)), _LIMIT_S, lambda: workers_of(node))
        wait_for(
            lambda: set(world.processes().values()) == set(workers_of(node)) and len(world.processes()) == 2,
            _LIMIT_S,
            world.processes,
        )
        assert world.processes().keys() == set(ports)
        assert all(map(is_open, ports))


@pytest.mark.chaos
def test_the_workers_of_a_node_with_metrics_are_replaced_and_their_metrics_stay_on_the_same_ports(world: World) -> None:
    metrics = free_ports(2)
    with two_workers(world, metrics_port=metrics[0], drain_ms=50) as (node, _):
        wait_for(lambda: all(map(has_metrics, metrics)), _LIMIT_S, lambda: [has_metrics(port) for port in metrics])
        for _ in range(2):
            before = set(workers_of(node))
            node.process.send_signal(signal.SIGHUP)
            wait_for(lambda before=before: not before & set(workers_of(node)), _LIMIT_S, node.log.read_text)
            wait_for(lambda: all(map(has_metrics, metrics)), _LIMIT_S, node.log.read_text)
        assert len(workers_of(node)) == 2


def has_metrics(port: int) -> bool:
    try:
        return "plainsql_build_info" in plain_http.get(f"http://127.0.0.1:{port}/metrics").text
    except httpx.TransportError:
        return False


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes users")


@as_root
@pytest.mark.parametrize("has_closing_connections", [False, True])
def test_a_port_that_is_kept_is_for_sockets_of_the_same_user(has_closing_connections: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as former:
        port = former.getsockname()[1]
        if has_closing_connections:
            client, (served, _) = socket.create_connection(("127.0.0.1", port)), former.accept()
            # The side that closes first keeps the port for a minute.
            served.close()
            client.close()
    with ExitStack() as kept:
        keep_port(kept, "127.0.0.1", port)
        for _ in range(2):
            for options in itertools.product([True, False], repeat=2):
                assert errno_of_binding(port, *options) == errno.EADDRINUSE, options
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            # A worker comes and goes.
            with socket.create_server(("127.0.0.1", port), reuse_port=True):
                socket.create_connection(("127.0.0.1", port)).close()


@as_root
@pytest.mark.chaos
def test_no_other_user_can_take_the_port_of_a_worker_that_died(world: World) -> None:
    with two_workers(world) as (node, ports):
        # A stopped parent starts no replacement.
        os.kill(node.process.pid, signal.SIGSTOP)
        try:
            os.kill(world.processes()[ports[0]], signal.SIGKILL)
            wait_for(lambda: not is_open(ports[0]), _LIMIT_S, lambda: "it still answers")
            for options in itertools.product([True, False], repeat=2):
                assert errno_of_binding(ports[0], *options) == errno.EADDRINUSE, options
        finally:
            os.kill(node.process.pid, signal.SIGCONT)
        wait_for(lambda: is_open(ports[0]), _LIMIT_S, node.log.read_text)


def errno_of_binding(port: int, reuse_address: bool, reuse_port: bool) -> int:
    """What a program of another user gets that binds a port; 0 if it can. Then a worker could not listen on it."""
    child = os.fork()
    if child == 0:
        try:
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            with socket.socket() as own:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
                own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
                own.bind(("127.0.0.1", port))
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
        finally:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def followed_alias(world: World, folder: Path, alias: int) -> Iterator[Callable[[], None]]:
    """`plainsql-server alias --follow` and an nginx, which reloads when the command says so. Yields a wait for that."""
    write_config(folder, Alias([f"127.0.0.1:{alias}"], ["127.0.0.1:1"], CONTROL_URL))
    # Only a master process reloads without cutting connections.
    main = folder / "nginx.conf"
    main.write_text(main.read_text().replace("master_process off;", "worker_processes 1;"))
    reload = " ".join([*nginx_command(found_nginx(), folder), "-s", "reload"])
    options = ["--listen", f"127.0.0.1:{alias}", "--control-url", CONTROL_URL, "--reload-command", reload]
    environment = {**os.environ, "PLAINSQL_DIRECTORY_DSN": world.dsn}
    with running_nginx(folder, alias), (folder / "followed").open("wb") as output:
        command = ["alias", "--follow", str(folder / "alias.conf"), *options]
        master = int((folder / "nginx.pid").read_text())

        def reloaded() -> None:
            # Until then, a worker with the former configuration answers, too.
            wait_for(
                lambda: all(is_newer(worker, folder / "alias.conf") for worker in children_of(master)),
                _LIMIT_S,
                (folder / "log").read_text,
            )

        process = forks.start(command, environment, output, folder)
        try:
            yield reloaded
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(_LIMIT_S) == 0, (folder / "followed").read_text()


def is_newer(pid: int, file: Path) -> bool:
    """Whether a process was started after a file was written, or has ended. The system counts in hundredths."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return True
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s > file.stat().st_mtime - 0.02


def homes_by_log(world: World, alias: int, nodes: list[Node]) -> dict[str, int]:
    """The index of the node that answers for each database."""
    answers = {name: ask(alias, world.key, name) for name in DATABASES}
    assert {answer.status_code for answer in answers.values()} == {200}, [each.text for each in answers.values()]
    ids = {name: answer.json()["request_id"] for name, answer in answers.items()}
    wait_for(lambda: set(ids.values()) <= set().union(*(node.logged() for node in nodes)), _LIMIT_S, lambda: ids)
    return {name: next(i for i, node in enumerate(nodes) if ids[name] in node.logged()) for name in DATABASES}


@pytest.mark.chaos
def test_the_alias_follows_processes_that_join_and_leave_and_only_their_share_moves(
    world: World, tmp_path: Path
) -> None:
    ports, alias = free_ports(3), free_port()
    file = tmp_path / "alias.conf"

    def shows(*shown: int) -> None:
        # Those and no other: a process that an earlier test has killed stays listed for some time, and its port may
        # belong to another test's node by now.
        wait_for(
            lambda: sorted(re.findall(r"server 127.0.0.1:(\d+) ", file.read_text())) == sorted(map(str, shown)),
            _LIMIT_S,
            (tmp_path / "followed").read_text,
        )

    with (
        running_node(world.dsn, worker_port=ports[0]) as first,
        running_node(world.dsn, worker_port=ports[1]) as second,
        followed_alias(world, tmp_path, alias) as reloaded,
    ):
        shows(ports[0], ports[1])
        reloaded()
        before = homes_by_log(world, alias, [first, second])
        assert set(before.values()) == {0, 1}
        with running_node(world.dsn, worker_port=ports[2]) as third:
            nodes = [first, second, third]
            shows(*ports)
            reloaded()
            joined = homes_by_log(world, alias, nodes)
            assert 2 in joined.values()
            assert {name: home for name, home in joined.items() if home != 2}.items() <= before.items()
            third.stop()
            shows(ports[0], ports[1])
            reloaded()
            assert homes_by_log(world, alias, nodes) == before
