"""deploy/compose, as its README says: from nothing to a first query, nodes that come and go, down and up again.

`make test-deploy` runs this with podman and podman-compose. The tests use one service, in this order.
"""

import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from server.tests.deploy.compose import ComposeSite, Load, query
from server.tests.deploy.containers import Images, podman
from server.tests.processes import wait_for

pytestmark = pytest.mark.full

README = Path(__file__).resolve().parents[3] / "deploy/compose/README.md"
# Requests that a free organization may make in a minute, and how many it tries.
ALLOWED, TRIED = 200, 600


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
        site.set_variables(PLAINSQL_DATA_NODES="4")
        overlay = "--file compose.yaml --file compose.monitoring.yaml"
        site.run(f"docker compose {overlay} down --volumes --timeout 20", check=False)


def commands() -> list[str]:
    """The lines of the README's first two blocks, from nothing to the first query."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    return [line for block in blocks[:2] for line in block.splitlines()]


def test_the_readme_leads_to_a_first_query(running: Running) -> None:
    assert running.answer["rows"] == [{"answer": 42}]


def test_secrets_are_made_once_and_only_their_owners_can_read_them(running: Running) -> None:
    running.site.run("./init.sh")
    assert secrets(running.site) == running.secrets


def test_nodes_of_another_image_come_and_old_ones_go_without_a_failed_request(running: Running) -> None:
    site = running.site
    busy, limited = running.new_customer("busy", "dedicated"), running.new_customer("limited", "free")
    newer = f"{site.images.server}-newer"
    podman("tag", site.images.server, newer)
    with Load(busy, site.ca_file, site.alias_port) as load:
        site.set_variables(PLAINSQL_IMAGE=newer, PLAINSQL_DATA_NODES="4")
        site.run("docker compose up --detach --no-recreate --wait")
        site.wait_for_upstreams(4)
        accepted = [load.is_accepted(limited[number % 4]) for number in range(TRIED // 2)]
        site.run(f"podman rm --force --time 60 {' '.join(site.container('data', number) for number in (1, 2, 4))}")
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
    overlays = "--file compose.yaml --file compose.tls.yaml --file compose.monitoring.yaml"
    # All but Grafana, which Debian has not.
    site.run(f"docker compose {overlays} up --detach --wait alias control follower data prometheus")
    site.wait_until_ready()
    own = site.here / "tls/server.crt"
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
