"""deploy/compose, as its README says: from nothing to a first query, backups, and a newer version and back.

`make test-deploy` runs this with podman and podman-compose. The tests use one service, in this order.
"""

import json
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from plainsql_server import VERSION
from server.tests.deploy.compose import ComposeSite, Load, post, query
from server.tests.deploy.containers import Images
from server.tests.processes import wait_for

pytestmark = pytest.mark.full

README = Path(__file__).resolve().parents[3] / "deploy/compose/README.md"
# Requests that a free organization may make in a minute, and how many it tries.
ALLOWED, TRIED = 200, 600
# Of the newer version that the README upgrades to.
NEWER = "0.62.0"


@dataclass(frozen=True)
class Running:
    """The service after the README's commands, and what the last one printed."""

    site: ComposeSite
    secrets: dict[str, str]
    answer: dict[str, Any]

    @property
    def key(self) -> str:
        return (self.site.here / "acme.txt").read_text().split()[-1]

    def query(self, sql: str) -> Any:
        return query(sql, self.key, self.site.ca_file, self.site.alias_port)["rows"]

    def new_customer(self, name: str, tier: str) -> list[str]:
        """The keys of a new organization."""
        create = f"docker compose run --rm -T operator org create {name} --tier {tier} --database main --key k0"
        keys = [self.site.run(create).split()[-1]]
        more = f"docker compose run --rm -T operator key create --org {name} --scope write --database main --name"
        return keys + [self.site.run(f"{more} k{number}").strip() for number in range(1, 4)]


@pytest.fixture(scope="module")
def running(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    site = ComposeSite(tmp_path_factory.mktemp("compose"), images)
    init, up, create, ask = commands()
    try:
        site.run(init)
        made = secrets(site)
        site.run(up)
        site.wait_until_ready()
        site.run(create)
        yield Running(site, made, json.loads(site.run(ask)))
    finally:
        site.set_variables(PLAINSQL_DATA_NODES="4", COMPOSE_FILE="compose.yaml:compose.monitoring.yaml")
        site.run("docker compose down --volumes --timeout 20", check=False)
        for tag in (VERSION, f"{VERSION}-ops", NEWER, f"{NEWER}-ops"):
            # Without the second name, it would lose all its names.
            image = f"localhost/plainsql-server:{tag}"
            site.run(f"podman untag {image} {image}", check=False)


def commands() -> list[str]:
    """The lines of the README's first two blocks, from nothing to the first query."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    return [line for block in blocks[:2] for line in block.splitlines()]


def test_the_readme_leads_to_a_first_query(running: Running) -> None:
    assert running.answer["rows"] == [{"answer": 42}]


def test_secrets_are_made_once_and_only_their_owners_can_read_them(running: Running) -> None:
    running.site.run("./init.sh")
    assert secrets(running.site) == running.secrets


def section(heading: str) -> list[list[str]]:
    """The commands of a section of the README, by block. A command may continue on the next line."""
    text = README.read_text().partition(f"# {heading}\n")[2]
    text = re.split(r"^##+ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]


def test_nodes_come_and_go_without_a_failed_request(running: Running) -> None:
    site = running.site
    busy, limited = running.new_customer("busy", "dedicated"), running.new_customer("limited", "free")
    with Load(busy, site.ca_file, site.alias_port) as load:
        site.set_variables(PLAINSQL_DATA_NODES="4")
        site.run("docker compose up --detach --no-recreate --wait")
        site.wait_for_upstreams(4)
        accepted = [load.is_accepted(limited[number % 4]) for number in range(TRIED // 2)]
        site.run("docker stop plainsql-data-1 plainsql-data-2 plainsql-data-4")
        site.run("docker rm plainsql-data-1 plainsql-data-2 plainsql-data-4")
        site.wait_for_upstreams(1)
        accepted += [load.is_accepted(limited[number % 4]) for number in range(TRIED // 2)]
        load.wait_for_more(100)
    print(f"\n{load.answered} requests answered, {len(load.failed)} failed; {sum(accepted)} of {ALLOWED} accepted")
    assert not load.failed, load.failed[:5]
    assert abs(sum(accepted) - ALLOWED) <= ALLOWED * 0.02


def test_nothing_is_lost_when_everything_stops(running: Running) -> None:
    running.query("create table kept (id int primary key)")
    running.query("insert into kept select generate_series(1, 1000)")
    # podman-compose stops only as many nodes as are set, and the third one runs.
    running.site.run("docker compose down")
    running.site.set_variables(PLAINSQL_DATA_NODES="2")
    assert not running.site.run("podman ps --quiet --filter name=plainsql_")
    running.site.run("docker compose up --detach --wait")
    running.site.wait_until_ready()
    assert running.query("select count(*) from kept") == [{"count": 1000}]


def test_backups_are_made_and_can_be_restored(running: Running) -> None:
    site = running.site
    ((make,), (restore,)) = section("Back up")
    site.run(make)
    made = sorted((site.here / "backups").glob("db_*/*.backup"))
    assert made
    assert list((site.here / "backups/directory").glob("*.backup"))
    assert (site.here / "backups").stat().st_mode & 0o777 == 0o700
    listed = json.loads(site.run("docker compose run --rm -T operator database list --org 'Acme Ltd' --json"))
    (shop,) = [each["id"] for each in listed if each["name"] == "shop"]
    (file,) = [each for each in made if each.parent.name == shop]
    site.run(re.sub(r"/backups/db_\S+", f"/backups/{shop}/{file.name}", restore))
    key = site.run(
        "docker compose run --rm -T operator key create --org 'Acme Ltd' --database shop-restored --scope read --name r"
    )
    rows = query("select count(*) from kept", key.strip(), site.ca_file, site.alias_port)["rows"]
    assert rows == [{"count": 1000}]


def test_an_upgrade_under_load_and_back_lose_no_request(running: Running) -> None:
    site = running.site
    site.release(NEWER)
    site.run(f"git checkout --quiet v{VERSION}")
    prepare, _ = section("Upgrade")
    ((*switch,),) = section("Without an interruption")
    for command in prepare:
        site.run(command)
    before = running.query("select pg_postmaster_start_time()::text as at")
    with Load(running.new_customer("upgraded", "dedicated"), site.ca_file, site.alias_port) as load:
        load.wait_for_more(100)
        for command in switch:
            site.run(command)
            if "--no-recreate" in command:
                # podman does not wait for health checks.
                site.wait_for_upstreams(4)
        site.wait_for_upstreams(2)
        load.wait_for_more(100)
    print(f"\n{load.answered} requests answered during an upgrade, {len(load.failed)} failed")
    assert not load.failed, load.failed[:5]
    assert running.query("select pg_postmaster_start_time()::text as at") == before
    assert images_of(site, "data", "control", "follower") == {image_id(site, NEWER)}
    version = site.run("podman exec plainsql_control_1 plainsql-server --version")
    assert version == f"plainsql-server {NEWER} (compiled)\n"

    for command in section("Roll back")[0]:
        site.run(command)
    # podman-compose knows containers by their numbers only, and leaves these.
    site.run("docker stop plainsql-data-3 plainsql-data-4 && docker rm plainsql-data-3 plainsql-data-4")
    site.wait_until_ready()
    assert images_of(site, "data", "control", "follower") == {image_id(site, VERSION)}
    wait_for(lambda: answers(running), 60, str)
    assert running.query("select count(*) from kept") == [{"count": 1000}]


def answers(running: Running) -> bool:
    return post("select 1", running.key, running.site.ca_file, running.site.alias_port)[0] == 200


def image_id(site: ComposeSite, version: str) -> str:
    return site.run(f"podman image inspect --format {{{{.Id}}}} localhost/plainsql-server:{version}").strip()


def images_of(site: ComposeSite, *services: str) -> set[str]:
    """The images of the containers of these services that run."""
    names = site.run("podman ps --format {{.Names}}").split()
    found = [name for name in names if re.fullmatch(rf"plainsql_({'|'.join(services)})_\d+", name)]
    assert len(found) >= len(services), names
    return set(site.run(f"podman inspect --format {{{{.Image}}}} {' '.join(found)}").split())


def test_a_statement_that_needs_too_much_memory_fails_alone(running: Running) -> None:
    site = running.site
    before = running.query("select pg_postmaster_start_time()::text as at")
    # Half of the cell's 2 GiB are less than both.
    sql = "select length(repeat(repeat('x', 1000000), 600) || repeat(repeat('y', 1000000), 480))"
    _, body = post(sql, running.key, site.ca_file, site.alias_port)
    assert body["error"]["sqlstate"] == "53200", body
    assert running.query("select pg_postmaster_start_time()::text as at") == before


def test_bodies_without_a_key_fill_no_more_than_the_aliass_share_of_memory(running: Running) -> None:
    site, megabyte = running.site, b" " * 1024 * 1024
    head = f"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {64 * len(megabyte)}\r\n\r\n"
    connections = []
    context = ssl.create_default_context(cafile=site.ca_file)
    try:
        for _ in range(10):
            plain = socket.create_connection(("localhost", site.alias_port), timeout=30)
            connection = context.wrap_socket(plain, server_hostname="localhost")
            connections.append(connection)
            connection.sendall(head.encode())
            # All but the last: the bodies remain incomplete, and nginx keeps them.
            try:
                for _ in range(63):
                    connection.sendall(megabyte)
            except OSError:
                # It was refused: /tmp is full.
                break
        assert len(connections) > 5
        assert running.query("select 1 as one") == [{"one": 1}]
        used, limit = site.run("podman exec plainsql_alias_1 df --output=used,size -B1 /tmp").split()[-2:]
        assert int(limit) * 0.9 < int(used) <= int(limit) == 512 * 1024**2
    finally:
        for connection in connections:
            connection.close()


def test_all_containers_have_a_limit_on_their_memory(running: Running) -> None:
    names = running.site.run("podman ps --format {{.Names}} --filter name=plainsql_").split()
    assert len(names) >= 8
    limits = running.site.run(f"podman inspect --format {{{{.HostConfig.Memory}}}} {' '.join(names)}").split()
    assert all(int(limit) > 0 for limit in limits), dict(zip(names, limits, strict=True))


@pytest.mark.parametrize("service", ["cell", "directory"])
def test_health_checks_of_postgresql_write_nothing_to_its_log(running: Running, service: str) -> None:
    check = yaml.safe_load((README.parent / "compose.yaml").read_text())["services"][service]["healthcheck"]["test"]
    container = running.site.container(service)

    def complaints() -> list[str]:
        return re.findall(r".*FATAL.*", running.site.run(f"podman logs {container} 2>&1"))

    before = complaints()
    running.site.run(f"podman exec {container} {' '.join(check[1:])}")
    # The same without a role is refused, and logged: then what came before it has been logged, too.
    running.site.run(f"podman exec {container} pg_isready -q -h /tmp -U nobody -d postgres")
    wait_for(lambda: len(complaints()) > len(before), 30, str)
    assert len(complaints()) == len(before) + 1, complaints()[-3:]


def test_certificates_are_renewed_while_everything_runs(running: Running) -> None:
    site = running.site
    served = ssl.get_server_certificate(("localhost", site.alias_port))
    renew = [
        line for line in README.read_text().splitlines() if line.startswith(("./init.sh renew", "docker compose kill"))
    ]
    assert len(renew) == 2
    for command in renew:
        site.run(command)
    wait_for(lambda: ssl.get_server_certificate(("localhost", site.alias_port)) != served, 60, str)
    assert running.query("select 1 as one") == [{"one": 1}]


def test_a_certificate_of_your_own_and_prometheus(running: Running) -> None:
    site = running.site
    (site.here / "tls").mkdir()
    site.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout tls/server.key"
        " -out tls/server.crt -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    site.run("./init.sh")
    site.run("docker compose down")
    site.set_variables(COMPOSE_FILE="compose.yaml:compose.tls.yaml:compose.monitoring.yaml")
    # All but Grafana, which Debian has not.
    site.run("docker compose up --detach --wait alias control follower data prometheus")
    site.wait_until_ready()
    own = site.here / "tls/server.crt"
    assert query("select 1 as one", running.key, own, site.alias_port)["rows"] == [{"one": 1}]
    # Later commands keep it.
    site.run("docker compose up --detach --wait alias")
    assert ssl.get_server_certificate(("localhost", site.alias_port)).strip() in own.read_text()
    assert query("select 1 as one", running.key, own, site.alias_port)["rows"] == [{"one": 1}]
    ask = f"podman exec {site.container('prometheus')} promtool query instant http://localhost:9090"
    # Two data nodes and the control plane, with the alert rules.
    wait_for(lambda: "=> 3 " in site.run(f"{ask} 'sum(up)'"), 120, lambda: site.run(f"{ask} up"))


def secrets(site: ComposeSite) -> dict[str, str]:
    """What every secret is. Nobody but its owner can read it."""
    found = {}
    for path in (site.here / "secrets").rglob("*"):
        if path.is_file():
            found[str(path)] = path.read_text()
            is_public = path.suffix in (".crt", ".crl")
            assert is_public or path.stat().st_mode & 0o777 in (0o400, 0o600), path
    assert len(found) > 50
    return found
