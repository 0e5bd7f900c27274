"""Nodes of two processes each behind a real alias, all over HTTPS, and clients that remember what they wrote.

    with running_site(directory, cell, folder, databases=12) as site:
        with site.node() as first, site.alias([first]):
            async with site.writing() as writers: …
        site.check(writers)

The alias follows the processes in the directory, as `plainsql-server alias --follow` does for operators.
"""

import asyncio
import itertools
import os
import secrets
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from plainsql_server.control_plane import databases, organizations
from plainsql_server.dev.alias import nginx_command, write_config
from plainsql_server.dev.certificates import Certificates, ensure_certificates
from plainsql_server.dev.ports import free_port, free_ports
from plainsql_server.directory.connection import Directory
from plainsql_server.operations.files.alias import Alias, TlsFiles
from server.tests import forks, logs
from server.tests.alias import CONTROL_URL, found_nginx, running_nginx
from server.tests.customers import Customers
from server.tests.fleet.writers import working
from server.tests.load import Client, NoAnswer, Node, running_node
from server.tests.postgres import Postgres
from server.tests.processes import wait_for

_LIMIT_S = 60.0
_PAUSE_S = 0.05
_INSERT = "insert into written values ($1)"
# Said by the service or by nginx about a request that may have been executed.
_UNKNOWN = "unknown"
# What a client notes if its connection ends instead of an answer.
CUT = "no answer"


@dataclass
class DatabaseWriter:
    """One client of one database. With keys, it repeats a write until it is acknowledged."""

    database: str
    has_keys: bool
    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    # What was said instead of yes, and how often; and when each write was acknowledged.
    words: Counter[str] = field(default_factory=Counter)
    times_s: list[float] = field(default_factory=list)

    async def run(self, client: Client, stop: asyncio.Event) -> None:
        """Writes until it is stopped, one row after the other."""
        async with client:
            for number in itertools.count():
                if stop.is_set():
                    return
                name = f"{'k' if self.has_keys else 'w'}{number}"
                key = secrets.token_hex(8) if self.has_keys else ""
                # Until there is an answer, or none that settles it.
                self.unknown.add(name)
                is_done = await self._ask(client, name, key)
                while self.has_keys and not is_done and not stop.is_set():
                    await asyncio.sleep(_PAUSE_S / 5)
                    is_done = await self._ask(client, name, key)
                await asyncio.sleep(_PAUSE_S)

    async def _ask(self, client: Client, name: str, key: str) -> bool:
        """Whether the write was acknowledged."""
        try:
            await client.post("/v1/query", {"sql": _INSERT, "params": [name]}, idempotency_key=key)
            answer = await client.answer()
        except (NoAnswer, OSError):
            self.words[CUT] += 1
            return False
        if answer.succeeded:
            self.unknown.remove(name)
            self.acknowledged.add(name)
            self.times_s.append(time.monotonic())
            return True
        self.words[f"{answer.status} {answer.code} {answer.outcome}"] += 1
        if answer.outcome != _UNKNOWN and not self.has_keys:
            self.unknown.remove(name)
            self.refused.add(name)
        return False

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time without an acknowledged write since then."""
        times_s = [since_s, *(at_s for at_s in self.times_s if at_s > since_s)]
        return max((after_s - before_s for before_s, after_s in itertools.pairwise(times_s)), default=float("inf"))

    def has_answer_after(self, at_s: float) -> bool:
        return bool(self.times_s) and self.times_s[-1] > at_s


@dataclass(frozen=True)
class Site:
    """A directory, a cell with databases of one organization, and the certificates of the nodes and the alias."""

    dsn: str
    cell: Postgres
    key: str
    databases: Sequence[str]
    certificates: Certificates
    folder: Path
    alias_port: int = field(default_factory=free_port)

    @contextmanager
    def node(self, **settings: object) -> Iterator[Node]:
        """A node of two processes, each listed with its own port."""
        files, ports = self.certificates, free_ports(2)
        tls = {"tls_cert_file": files.cert_file, "tls_key_file": files.key_file}
        with running_node(self.dsn, workers=2, worker_port=ports[0], **tls, **settings) as node:
            wait_for(lambda: set(ports) <= self.ports(), _LIMIT_S, self.ports)
            yield node

    def ports(self) -> set[int]:
        """The processes' own ports in the directory's list."""
        with psycopg.connect(self.dsn) as directory:
            rows = directory.execute("SELECT address FROM data_processes WHERE address IS NOT NULL").fetchall()
        return {int(address.rpartition(":")[2]) for (address,) in rows}

    def ports_of(self, node: Node) -> set[int]:
        first = int(node.settings["PLAINSQL_WORKER_PORT"])
        return {first, first + 1}

    @contextmanager
    def alias(self) -> Iterator[None]:
        """nginx and the command that makes it follow the processes which are listed."""
        files, listen = self.certificates, f"127.0.0.1:{self.alias_port}"
        upstreams = [f"127.0.0.1:{port}" for port in sorted(self.ports())]
        tls = TlsFiles(files.cert_file, files.key_file)
        write_config(self.folder, Alias([listen], upstreams, CONTROL_URL, tls=tls, upstream_ca_file=files.ca_file))
        # Only a master process reloads without cutting connections.
        main = self.folder / "nginx.conf"
        main.write_text(main.read_text().replace("master_process off;", "worker_processes 1;"))
        reload = " ".join([*nginx_command(found_nginx(), self.folder), "-s", "reload"])
        command = [
            "alias", "--follow", str(self.folder / "alias.conf"), "--listen", listen, "--control-url", CONTROL_URL,
            "--tls-cert-file", str(files.cert_file), "--tls-key-file", str(files.key_file),
            "--upstream-ca-file", str(files.ca_file), "--reload-command", reload,
        ]  # fmt: skip
        environment = {**os.environ, "PLAINSQL_DIRECTORY_DSN": self.dsn}
        with (
            logs.watching(self.folder, "log"),
            logs.watching(self.folder, "followed"),
            running_nginx(self.folder, self.alias_port),
            (self.folder / "followed").open("wb") as output,
        ):
            process = forks.start(command, environment, output, self.folder)
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(_LIMIT_S) == 0, (self.folder / "followed").read_text()

    def followed(self) -> set[int]:
        """The ports in the alias' configuration."""
        lines = [line.split() for line in (self.folder / "alias.conf").read_text().splitlines()]
        return {int(words[1].rpartition(":")[2]) for words in lines if words[:1] == ["server"] and len(words) > 2}

    def client(self, database: str) -> Client:
        """A client of the alias that verifies its certificate."""
        trust = ssl.create_default_context(cafile=str(self.certificates.ca_file))
        return Client(self.alias_port, self.key, database=database, trust=trust)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[list[DatabaseWriter]]:
        """Two clients for each database, one of them with keys, for the length of the block."""
        writers = [DatabaseWriter(name, has_keys) for name in self.databases for has_keys in (False, True)]
        stop = asyncio.Event()
        tasks = [asyncio.create_task(each.run(self.client(each.database), stop)) for each in writers]
        async with working(tasks, stop):
            yield writers

    def check(self, writers: Sequence[DatabaseWriter]) -> None:
        """Compares what the clients know with what is in the databases."""
        for name, rows in self.rows().items():
            clients = [each for each in writers if each.database == name]
            acknowledged = set().union(*(each.acknowledged for each in clients))
            assert max(rows.values()) == 1, f"{name}: written twice"
            assert acknowledged <= rows.keys(), f"{name}: lost {sorted(acknowledged - rows.keys())[:5]}"
            assert not rows.keys() & set().union(*(each.refused for each in clients)), f"{name}: refused and done"
            assert rows.keys() <= acknowledged | set().union(*(each.unknown for each in clients))

    def rows(self) -> dict[str, Counter[str]]:
        """What is in each database, asked past the service."""
        found = {}
        for name, engine_name in self._engine_names().items():
            with self.cell.connect(database=engine_name) as inside:
                found[name] = Counter(row for (row,) in inside.execute("select n from written"))
        return found

    def _engine_names(self) -> dict[str, str]:
        with psycopg.connect(self.dsn) as directory:
            rows = directory.execute("SELECT name, engine_name FROM databases").fetchall()
        return {name: engine_name for name, engine_name in rows if name in self.databases}


@contextmanager
def running_site(dsn: str, cell: Postgres, folder: Path, database_count: int) -> Iterator[Site]:
    """For the length of the block; each database has a table `written`."""
    customers = Customers(dsn)
    customers.add_cell("local", cell.conninfo)
    customers.add_organization("acme")
    names = [f"shop-{number}" for number in range(database_count)]
    asyncio.run(_create(dsn, names))
    tls, alias = folder / "tls", folder / "alias"
    tls.mkdir()
    site = Site(dsn, cell, customers.new_key("write", organization="acme"), names, ensure_certificates(tls), alias)
    with site.node() as node:
        asyncio.run(_make_tables(site, node))
    yield site


async def _create(dsn: str, names: Sequence[str]) -> None:
    async with Directory.open(dsn) as directory:
        owner = await organizations.get(directory, "acme")
        await asyncio.gather(*(databases.create(directory, owner.id, name) for name in names))


async def _make_tables(site: Site, node: Node) -> None:
    trust = ssl.create_default_context(cafile=str(site.certificates.ca_file))
    for name in site.databases:
        async with Client(node.port, site.key, database=name, trust=trust) as client:
            answer = await client.query("create table written (n text not null)")
            assert answer.succeeded, answer
