"""Many callers on one connection, as behind a proxy: each gets its own answers, and the fast lane knows all of them."""

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from plainsql_server.core import credential
from plainsql_server.dev.ports import free_port
from server.tests import plain_http
from server.tests.alias import running_alias
from server.tests.end_to_end.control import answer, new_key
from server.tests.end_to_end.fast_lane import MODES, logged, sql_wires_of, wires_of
from server.tests.end_to_end.wires import SqlWire, Wire, counted, kept_by_lane, same
from server.tests.load import Activity, Node, running_node, size
from server.tests.processes import wait_for
from server.tests.service import Service

pytestmark = pytest.mark.compiled

# Unknown, learned, and known: what a caller may be to the lane. `make soak PART=engine` runs more.
ROUNDS = size("PLAINSQL_TEST_CALLER_ROUNDS", 3)
ORGANIZATIONS = ("callers-a", "callers-b", "callers-c")
# Each organization has both, so the same name leads to another database for another caller.
DATABASES = ("first", "second")
WHO = "select place, current_user = session_user as same, $1::int as n from who"


@dataclass(frozen=True)
class Sender:
    """Who sends requests, and the database that their heads name; and what the answers must show, if they succeed."""

    key: str
    database: str | None
    place: str | None = None

    def head(self) -> str:
        return "" if self.database is None else f"X-Database: {self.database}\r\n"

    def query(self, wire: Wire, body: dict[str, Any] | bytes) -> tuple[bytes, bytes]:
        """The answer to a request on a connection that others use, too."""
        if isinstance(wire, SqlWire):
            wire.key, wire.database = self.key, self.database or ""
        else:
            wire.key, wire.head = self.key, self.head()
        return wire.query(body)


@pytest.fixture(scope="module")
def owners(service: Service) -> dict[str, str]:
    """A key of each organization that may write, to databases that say whose they are."""
    keys = {}
    for organization in ORGANIZATIONS:
        service.customers.add_organization(organization)
        keys[organization] = service.new_key("write", org=organization)
        for database in DATABASES:
            service.customers.add_database(database, organization)
            for sql in ("create table who (place text)", f"insert into who values ('{organization}/{database}')"):
                sent = {"sql": sql, "database": database}
                assert service.call("POST", "/v1/query", key=keys[organization], json=sent).status_code == 200
    return keys


@pytest.fixture(scope="module")
def senders(service: Service, owners: dict[str, str]) -> list[Sender]:
    """Callers whose requests succeed."""
    made = []
    for organization, key in owners.items():
        reader = service.new_key("read", org=organization)
        bound = service.customers.new_key("write", organization=organization, database="second")
        made += [Sender(each, name, f"{organization}/{name}") for each in (key, reader) for name in DATABASES]
        made += [Sender(key, None, f"{organization}/first"), Sender(bound, None, f"{organization}/second")]
        made += [Sender(bound, "second", f"{organization}/second")]
    return made


@pytest.fixture(scope="module")
def others(service: Service, owners: dict[str, str]) -> list[Sender]:
    """Callers whose requests are refused, each for another reason; and one whose heads must be parsed."""
    key = owners["callers-a"]
    revoked = new_key(service, "write")
    answer(service, "DELETE", f"/v1/keys/{revoked['id']}", status=204)
    unknown = credential.new_key().text
    wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
    bound = service.customers.new_key("write", organization="callers-b", database="second")
    names = (None, "first")
    return [
        *(Sender(each, name) for each in (unknown, wrong, revoked["secret"], key[:-1]) for name in names),
        *(Sender(service.new_key("admin", org="callers-a"), name) for name in names),
        Sender(bound, "first"), Sender(key, "third"), Sender(key, "First"), Sender(key, ""), Sender(f" {key}", "nope"),
        Sender(f"{key}\r\nAuthorization: Basic x", "first"), Sender(f" {key}", "first", "callers-a/first"),
    ]  # fmt: skip


def bodies(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Requests for the routes of the lane."""
    statement = {"sql": WHO, "params": [number]}
    return [
        ("/v1/query", statement),
        ("/v1/query", {**statement, "database": "second"}),
        ("/v1/query", {"sql": "insert into who select place from who where $1::int < 0", "params": [number]}),
        ("/v1/transaction", {"statements": [statement, statement]}),
    ]


def test_all_callers_get_the_answers_that_the_ordinary_path_gives(
    nodes: dict[str, Node], senders: list[Sender], others: list[Sender]
) -> None:
    order = random.Random(4)
    with wires_of(nodes, "", "") as wires:
        for number in range(ROUNDS):
            sent = [(sender, *each) for sender in (*senders, *others) for each in bodies(number)]
            order.shuffle(sent)
            for sender, path, body in sent:
                for wire in wires.values():
                    wire.path = path
                answers = {mode: same(sender.query(wire, body)) for mode, wire in wires.items()}
                for mode in MODES[1:]:
                    assert answers[mode] == answers["off"], (mode, sender, body)


def test_all_callers_of_the_neon_driver_get_the_answers_that_the_ordinary_path_gives(
    nodes: dict[str, Node], senders: list[Sender], others: list[Sender]
) -> None:
    order = random.Random(6)
    with sql_wires_of(nodes, "", "") as wires:
        for number in range(ROUNDS):
            sent = [
                (sender, body)
                for sender in (*senders, *others)
                for body in ({"query": WHO, "params": [number]}, {"query": "select place from who"})
            ]
            order.shuffle(sent)
            for sender, body in sent:
                answers = {mode: same(sender.query(wire, body)) for mode, wire in wires.items()}
                for mode in MODES[1:]:
                    assert answers[mode] == answers["off"], (mode, sender, body)
                if sender.place is not None and "\r" not in sender.key and sender.key[0] != " ":
                    assert f'"place":"{sender.place}"'.encode() in answers["on"][1], sender


@pytest.mark.parametrize("mode", MODES)
def test_each_caller_gets_its_own_rows_and_is_logged_as_itself(
    service: Service, senders: list[Sender], others: list[Sender], mode: str
) -> None:
    order = random.Random(5)
    wanted, sent = [], [*senders, *others] * ROUNDS
    order.shuffle(sent)
    with (
        running_node(service.directory_dsn, fast_lane=mode, metrics_port=0) as node,
        closing(Wire(node.port, "")) as wire,
    ):
        for number, sender in enumerate(sent):
            body = {"sql": WHO, "params": [number]}
            got = json.loads(sender.query(wire, body)[1])
            rows = [{"place": sender.place, "same": True, "n": number}]
            assert got["rows"] == ([] if sender.place is None else rows), sender
            wanted.append(sender.place is not None)
        wait_for(lambda: len(logged(node)) == len(sent), 30, node.failures)
        lines = logged(node)
    # What is logged of each key belongs to one organization.
    succeeded = [line for line in lines if line["status"] == 200]
    assert len(succeeded) == sum(wanted)
    organization_of = {line["key_id"]: line["organization_id"] for line in succeeded}
    assert {(line["key_id"], line["organization_id"]) for line in succeeded} == set(organization_of.items())
    assert len(organization_of) == 3 * len(ORGANIZATIONS)
    assert len(set(organization_of.values())) == len(ORGANIZATIONS)


@contextmanager
def lane_node(service: Service, **settings: object) -> Iterator[tuple[Node, int]]:
    """A node with the lane on, and the port of its metrics."""
    port = free_port()
    with running_node(service.directory_dsn, fast_lane="on", metrics_port=port, **settings) as node:
        yield node, port


@pytest.mark.parametrize(("kind", "name"), [(Wire, "sql"), (SqlWire, "query")])
def test_the_lane_answers_all_callers_on_one_connection(
    service: Service, senders: list[Sender], kind: type[Wire], name: str
) -> None:
    with lane_node(service) as (node, metrics_port), closing(kind(node.port, "")) as wire:
        counts = []
        for number in range(ROUNDS):
            before = kept_by_lane(counted(metrics_port))
            for sender in senders:
                rows = json.loads(sender.query(wire, {name: WHO, "params": [number]})[1])["rows"]
                assert rows == [{"place": sender.place, "same": True, "n": number}]
            counts.append((kept_by_lane(counted(metrics_port)) - before) / len(senders))
    print(f"the lane answered, by round: {', '.join(f'{count:.2f}' for count in counts)}")
    assert sum(counts[1:]) / len(counts[1:]) >= 0.9


def test_a_caller_is_known_on_a_connection_on_which_it_has_not_called(service: Service, senders: list[Sender]) -> None:
    body = {"sql": WHO, "params": [1]}
    with lane_node(service) as (node, metrics_port):
        with closing(Wire(node.port, "")) as wire:
            for sender in senders * 3:
                sender.query(wire, body)
        with closing(Wire(node.port, "")) as other:
            # It has one head of each form from these two.
            for sender in (Sender(senders[0].key, name) for name in (None, "first")):
                sender.query(other, body)
            before = kept_by_lane(counted(metrics_port))
            for sender in senders:
                assert json.loads(sender.query(other, body)[1])["rows"][0]["place"] == sender.place
            assert kept_by_lane(counted(metrics_port)) - before >= len(senders) * 0.9


def test_the_lane_answers_the_callers_behind_the_alias(service: Service, senders: list[Sender]) -> None:
    def ask(client: httpx.Client, number: int, sender: Sender) -> None:
        headers = {"Authorization": f"Bearer {sender.key}"}
        if sender.database is not None:
            headers["X-Database"] = sender.database
        got = client.post("/v1/query", headers=headers, json={"sql": WHO, "params": [number]}).json()
        assert got["rows"] == [{"place": sender.place, "same": True, "n": number}], got

    with (
        lane_node(service) as (node, metrics_port),
        running_alias(node.port) as port,
        plain_http.client(base_url=f"http://127.0.0.1:{port}") as client,
        ThreadPoolExecutor(4) as threads,
    ):
        shares = []
        for number in range(4):
            before = kept_by_lane(counted(metrics_port))
            sent = random.Random(number).sample(senders * 10, len(senders) * 10)
            list(threads.map(partial(ask, client, number), sent))
            shares.append((kept_by_lane(counted(metrics_port)) - before) / len(sent))
    print(f"the lane answered, by round: {', '.join(f'{share:.2f}' for share in shares)}")
    # Requests that meet on the same database need another connection to it, which the ordinary path opens.
    assert sum(shares[1:]) / len(shares[1:]) >= 0.9


def test_the_lane_answers_many_users_of_the_neon_driver_behind_the_alias(
    service: Service, senders: list[Sender]
) -> None:
    """The user is part of the head. A connection knows four heads, and they must not push out each other in turns."""
    sent = [sender for sender in senders if sender.database is not None] * 8
    with (
        lane_node(service) as (node, metrics_port),
        running_alias(node.port) as port,
        plain_http.client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        before = kept_by_lane(counted(metrics_port))
        for number, sender in enumerate(sent):
            string = f"postgresql://user{number % 5}:{sender.key}@api.example.com/{sender.database}"
            body = {"query": WHO, "params": [number]}
            got = client.post("/sql", headers={"Neon-Connection-String": string}, json=body).json()
            assert got["rows"] == [{"place": sender.place, "same": True, "n": number}], got
        share = (kept_by_lane(counted(metrics_port)) - before) / len(sent)
    print(f"the lane answered {share:.2f}")
    # At most four of the five, and fewer until all callers and statements are known.
    assert share >= 0.6


@pytest.mark.parametrize(("kind", "name", "status"), [(Wire, "sql", b"401"), (SqlWire, "query", b"400")])
def test_a_revoked_key_is_refused_on_a_connection_that_others_use_on(
    service: Service, owners: dict[str, str], kind: type[Wire], name: str, status: bytes
) -> None:
    """The lane knows the key on the connection, and from another one; and the other callers stay on the lane."""
    other = Sender(owners["callers-a"], None)
    body = {name: "select $1::int as n", "params": [1]}

    def is_refused(sender: Sender, wire: Wire) -> bool:
        head, answered = sender.query(wire, body)
        return head.startswith(b"HTTP/1.1 " + status) and b'"code":"unauthenticated"' in answered

    with lane_node(service) as (node, metrics_port):
        wires = [kind(node.port, "") for _ in range(3)]
        for _ in range(5):
            made = new_key(service, "write")
            key = Sender(made["secret"], None)
            for wire in (*wires[:2], *wires[:2], *wires):
                assert other.query(wire, body)[0].startswith(b"HTTP/1.1 200")
                if wire is not wires[2]:
                    assert key.query(wire, body)[0].startswith(b"HTTP/1.1 200")
            before = kept_by_lane(counted(metrics_port))
            answer(service, "DELETE", f"/v1/keys/{made['id']}", status=204)
            wait_for(partial(is_refused, key, wires[0]), 30, lambda: "still valid")
            for wire in wires * 3:
                assert is_refused(key, wire)
                assert other.query(wire, body)[0].startswith(b"HTTP/1.1 200")
            assert kept_by_lane(counted(metrics_port)) - before >= 8
        for wire in wires:
            wire.close()


def is_waiting(metrics_port: int) -> bool:
    """Whether one request waits for a slot."""
    return sum(value for name, value in counted(metrics_port).items() if name.startswith("plainsql_cell_waiting")) == 1


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("place_of_name", ["body", "head", "string"])
async def test_a_request_that_waits_for_a_slot_goes_on_as_its_own_callers(
    service: Service, owners: dict[str, str], is_changed: bool, place_of_name: str
) -> None:
    """The head was learned from another caller. If a key changes meanwhile, the ordinary path begins again with it."""
    admin = service.new_key("admin", org="callers-b")
    named = None if place_of_name == "body" else "first"
    other, waiting = (Sender(owners[each], named) for each in ("callers-a", "callers-b"))
    kind, body = {
        "body": (Wire, {"sql": WHO, "params": [1], "database": "first"}),
        "head": (Wire, {"sql": WHO, "params": [1]}),
        "string": (SqlWire, {"query": WHO, "params": [1]}),
    }[place_of_name]
    tag = f"holder-{is_changed}-{place_of_name}"
    with lane_node(service, pool_max_connections=1) as (node, metrics_port), closing(kind(node.port, "")) as wire:

        def place(sender: Sender) -> str:
            return str(json.loads(sender.query(wire, body)[1])["rows"][0]["place"])

        def count(reason: str) -> float:
            return counted(metrics_port).get(f'plainsql_lane_handed_over_total{{reason="{reason}"}}', 0.0)

        for _ in range(4):
            assert (place(other), place(waiting)) == ("callers-a/first", "callers-b/first")
        assert place(other) == "callers-a/first"
        before, answered = count("changed"), kept_by_lane(counted(metrics_port))
        got: list[str] = []
        holder = Wire(node.port, waiting.key, "X-Database: first\r\n")
        holder.send(holder.bytes_of({"sql": f"select pg_sleep(1.2)::text /* {tag} */"}))
        async with Activity.of(service) as activity:
            await activity.begun(tag)
        thread = threading.Thread(target=lambda: got.append(place(waiting)))
        thread.start()
        await asyncio.to_thread(wait_for, partial(is_waiting, metrics_port), 1.0, node.failures)
        if is_changed:
            # A new key of the organization has the service look up all of them again.
            made = await asyncio.to_thread(new_key, service, "read", key=admin)
            await asyncio.to_thread(answer, service, "DELETE", f"/v1/keys/{made['id']}", status=204, key=admin)
        await asyncio.to_thread(holder.answer)
        await asyncio.to_thread(thread.join)
        holder.close()
        assert got == ["callers-b/first"]
        assert count("changed") - before == (1 if is_changed else 0)
        if not is_changed:
            assert kept_by_lane(counted(metrics_port)) - answered == 1
