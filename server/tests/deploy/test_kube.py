"""The pods that the chart renders answer a query, next to a real PostgreSQL. podman plays them.

`make test-deploy` runs this. The commands are those of the chart's README, in the operator's pod.
"""

import json
import secrets
import shutil
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import httpx
import psycopg
import pytest
import trustme
import yaml

from plainsql_server.dev.ports import free_port
from plainsql_server.directory.migrations import migrate
from plainsql_server.directory.sealing.keyring import new_key
from plainsql_server.operations.files.cell import CellConfig, Tls
from server.tests.deploy.containers import Images, podman
from server.tests.deploy.kube import Json, Played, Secrets, network, playing
from server.tests.deploy.test_chart import CHART, helm
from server.tests.postgres import SUPERUSER, Postgres, running_postgres
from server.tests.processes import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

_LIMIT_S = 60
_CELL, _DIRECTORY = "cell-1.example", "plainsql_directory"
_DATA, _CONTROL, _OPERATOR = (f"demo-plainsql-{part}" for part in ("data", "control", "operator"))
_HOSTS = {_DATA: "sql.example", _CONTROL: "control.example"}
_OWNER = "plainsql_owner"
_ROLES = {"data-dsn": "plainsql_data", "control-dsn": "plainsql_control", "operator-dsn": "plainsql_operator"}


@dataclass(frozen=True, slots=True)
class WithDirectory(CellConfig):
    """A cell whose cluster also holds the directory, to which the planes log in with passwords."""

    def pg_hba_conf(self) -> str:
        directory = [f"host {_DIRECTORY} all {network} scram-sha-256" for network in self.networks]
        return "\n".join([f"local all {SUPERUSER} trust", *directory, *self.service_lines(), ""])


@dataclass(frozen=True, slots=True)
class Service:
    """The pods, and who their certificates are from."""

    played: Played
    authority: trustme.CA
    conninfo: str
    socket: str
    """For the superuser of the cluster."""

    def ask(self, name: str, url: str, key: str = "", body: Json | None = None) -> httpx.Response:
        """A request to a plane, by its public name."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        headers = {"Host": _HOSTS[name], **({"Authorization": f"Bearer {key}"} if key else {})}
        method, extensions = "GET" if body is None else "POST", {"sni_hostname": _HOSTS[name]}
        with httpx.Client(verify=context) as client:
            return client.request(method, url, headers=headers, json=body, extensions=extensions)

    def passes(self, name: str, probe: str) -> bool:
        return self.answers(name, self.played.probed(name, probe))

    def answers(self, name: str, url: str) -> bool:
        try:
            return self.ask(name, url).is_success
        except (httpx.NetworkError, httpx.TimeoutException):
            return False


@pytest.fixture(scope="module")
def service(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder, port, authority = tmp_path_factory.mktemp("kube"), free_port(), trustme.CA()

    def config(root: Path) -> CellConfig:
        authority.issue_cert(_CELL).private_key_and_cert_chain_pem.write_to_path(root / "server.pem")
        authority.cert_pem.write_to_path(root / "ca.pem")
        (root / "server.pem").chmod(0o600)
        shutil.chown(root / "server.pem", "postgres", "postgres")
        tls = Tls(f"{root}/server.pem", f"{root}/server.pem", f"{root}/ca.pem")
        return WithDirectory(SUPERUSER, str(root), tls, gateway, (f"{gateway}/24",))

    with network() as gateway, running_postgres(config, port=port, major=15) as postgres:
        made = secrets_of(postgres, gateway, port, authority)
        with playing(rendered(images, folder), made, folder) as played:
            socket = f"host={postgres.socket_dir} port={port} user={SUPERUSER} dbname=postgres"
            service = Service(played, authority, f"host={_CELL} hostaddr={gateway} port={port}", socket)
            for name, probe in product(_HOSTS, ("startupProbe", "livenessProbe", "readinessProbe")):
                wait_for(partial(service.passes, name, probe), _LIMIT_S, partial(played.log, name))
            yield service


def secrets_of(postgres: Postgres, gateway: str, port: int, authority: trustme.CA) -> Secrets:
    """Makes the directory as the README says, and returns the secrets that it asks for."""
    address = f"host={gateway} port={port} dbname={_DIRECTORY}"
    passwords = {role: secrets.token_hex(12) for role in (_OWNER, *_ROLES.values())}
    dsns = {key: f"{address} user={role} password={passwords[role]}" for key, role in _ROLES.items()}
    dsns["migrate-dsn"] = f"{address} user={_OWNER} password={passwords[_OWNER]}"
    socket = f"host={postgres.socket_dir} port={port} user={SUPERUSER} dbname=postgres"
    with psycopg.connect(socket, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {_OWNER} LOGIN CREATEROLE PASSWORD '{passwords[_OWNER]}'")
        admin.execute(f"CREATE DATABASE {_DIRECTORY} OWNER {_OWNER}")
        migrate(dsns["migrate-dsn"])
        for role in _ROLES.values():
            admin.execute(f"ALTER ROLE {role} PASSWORD '{passwords[role]}'")
    served = authority.issue_cert(*_HOSTS.values())
    return {
        "plainsql-directory": dsns,
        "plainsql-cells": {"ca.crt": pem(authority.cert_pem), **client(authority, "data", "plainsql_data"),
                           **client(authority, "control", SUPERUSER)},
        "plainsql-secrets-keys": {"keys": f"{new_key()}\n"},
        "plainsql-tls": {"tls.crt": pem(served.cert_chain_pems[0]), "tls.key": pem(served.private_key_pem)},
    }  # fmt: skip


def client(authority: trustme.CA, name: str, role: str) -> dict[str, str]:
    issued = authority.issue_cert(f"{name}@test.example", common_name=role)
    return {f"{name}.crt": pem(issued.cert_chain_pems[0]), f"{name}.key": pem(issued.private_key_pem)}


def pem(blob: trustme.Blob) -> str:
    return blob.bytes().decode()


def rendered(images: Images, folder: Path) -> list[Json]:
    repository, _, tag = images.server.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag}, "directory": {"existingSecret": "plainsql-directory"},
        "cells": {"existingSecret": "plainsql-cells"}, "tls": {"existingSecret": "plainsql-tls"},
        "data": {"url": f"https://{_HOSTS[_DATA]}"}, "control": {"url": f"https://{_HOSTS[_CONTROL]}"},
        "operator": {"enabled": True}, "secretsKeys": {"existingSecret": "plainsql-secrets-keys"},
    }  # fmt: skip
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    ended = helm("template", "demo", CHART, "--values", file)
    assert ended.returncode == 0, ended.stderr
    return [each for each in yaml.safe_load_all(ended.stdout) if each]


def test_the_pods_answer_the_first_query(service: Service) -> None:
    operate = partial(service.played.run, _OPERATOR, "plainsql-server")
    mounted = {"sslrootcert": "ca.crt", "sslcert": "me.crt", "sslkey": "me.key"}
    files = " ".join(f"{name}=/etc/plainsql/cells/{file}" for name, file in mounted.items())
    conninfo = f"{service.conninfo} sslmode=verify-full {files}"
    operate("cell", "add", "cell-1", "--admin-role", SUPERUSER, "--conninfo", conninfo)
    key = operate("org", "create", "acme", "--database", "main", "--key", "first").split()[-1]
    answer = service.ask(_DATA, route(service, _DATA, "/v1/query"), key, {"sql": "select 40 + 2 as answer"})
    assert answer.json()["rows"] == [{"answer": 42}]
    assert service.ask(_CONTROL, route(service, _CONTROL, "/v1/session"), key, {}).is_success


def test_the_operators_pod_upgrades_the_cells(service: Service) -> None:
    with psycopg.connect(service.socket, autocommit=True) as admin:
        admin.execute("GRANT CONNECT ON DATABASE template1 TO PUBLIC")
    operate = partial(service.played.run, _OPERATOR, "plainsql-server")
    assert "revoke CONNECT on template1 from PUBLIC" in operate("upgrade")
    assert json.loads(operate("upgrade", "--dry-run", "--json")) == []


@pytest.mark.timing
def test_a_stopped_data_plane_is_ready_again_within_seconds(service: Service) -> None:
    podman("pod", "stop", "--time", "15", _DATA)
    started = time.monotonic()
    podman("pod", "start", _DATA)
    ready = service.played.probed(_DATA, "readinessProbe")
    wait_for(partial(service.answers, _DATA, ready), _LIMIT_S, partial(service.played.log, _DATA))
    took_s = time.monotonic() - started
    print(f"\nfrom start to ready: {took_s:.1f} s")
    # Ten times as long as on a busy machine with two cores. Compose and Kubernetes give it a minute.
    assert took_s < 35


def route(service: Service, name: str, path: str) -> str:
    return str(httpx.URL(service.played.probed(name, "livenessProbe")).copy_with(path=path))


def test_the_image_has_the_program_that_a_stopping_pod_runs(service: Service) -> None:
    for name in _HOSTS:
        container = service.played.deployments[name]["spec"]["template"]["spec"]["containers"][0]
        program, _ = container["lifecycle"]["preStop"]["exec"]["command"]
        service.played.run(name, program, "0")
