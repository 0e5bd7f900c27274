"""A copy of deploy/compose that runs with podman, in which `docker` and `docker compose` work as its README has them.

site = ComposeSite(folder, Images())
site.run("./init.sh")
site.run("docker compose up --detach --wait")
"""

import os
import re
import shlex
import shutil
import ssl
import subprocess
import threading
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Self

import msgspec

from console.tests.programs import FILES as CONSOLE_FILES
from plainsql_server import VERSION
from plainsql_server.dev.ports import free_port
from server.tests.deploy.containers import BASE, ROOT, RUNTIME, Images, builder, podman
from server.tests.processes import wait_for

_PODMAN_COMPOSE = ROOT / ".venv-deploy/bin/podman-compose"
_LIMIT_S = 300.0
_BUILD_LIMIT_S = 1800.0
# What docker compose does by itself: `run` uses the profile of the service, and .env names the files. podman-compose
# names containers with underscores, and gives podman no time for them to stop.
_DOCKER = """#!/bin/bash
case $1 in
compose)
    shift
    [ "$1" != run ] || set -- --profile commands "$@"
    COMPOSE_FILE=$(sed -n 's/^COMPOSE_FILE=//p' .env) exec {compose} "$@" ;;
build)
    shift
    exec nice -n 15 {build} --layers "$@" ;;
stop)
    shift
    exec podman stop --time 60 "${{@//-/_}}" ;;
rm)
    exec podman "${{@//-/_}}" ;;
esac
exec podman "$@"
"""
# podman 4.3 can't start a container whose dependencies have dependencies. podman-compose starts them in order anyway.
# podman 4.3 also has no health checks for the start.
_PODMAN = """#!/bin/bash
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    --requires=*) ;;
    --health-startup-interval) shift ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
exec {podman} --runtime {runtime} "${{arguments[@]}}"
"""


# Of the repository, what is checked out, and where its version is.
_NEEDED = ("deploy", "requirements", "server")
_WITH_VERSION = (
    "server/src/plainsql_server/__init__.py", "deploy/docker/Dockerfile", "deploy/compose/.env.example",
)  # fmt: skip


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


@dataclass(frozen=True)
class ComposeSite:
    """A folder with the files, its settings, and the programs for it."""

    folder: Path
    images: Images
    alias_port: int = field(default_factory=free_port)
    control_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self._check_out()
        self._write_programs()
        self.set_variables(
            POSTGRES_IMAGE=self.images.others, REDIS_IMAGE=self.images.others, NGINX_IMAGE=self.images.others,
            PROMETHEUS_IMAGE=self.images.others, PLAINSQL_BASE_IMAGE=BASE,
            PLAINSQL_ALIAS_PORT=str(self.alias_port), PLAINSQL_CONTROL_PORT=str(self.control_port),
        )  # fmt: skip
        # These exist already, so that init.sh does not build them.
        for image, variable in ((self.images.server, "PLAINSQL_IMAGE"), (self.images.ops, "PLAINSQL_OPS_IMAGE")):
            podman("tag", image, self.variable(variable))

    def _check_out(self) -> None:
        """Makes a repository of what the image and Compose need, which only its owner can read."""
        listed = _git(
            ROOT, "ls-files", "--cached", "--others", "--exclude-standard", ".dockerignore", *_NEEDED, ":!server/tests"
        )
        for name in listed.splitlines():
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.folder / name)
        # They are not in the repository.
        shutil.copytree(CONSOLE_FILES, self.folder / CONSOLE_FILES.relative_to(ROOT))
        self.run("chmod -R go= ../..")
        _git(self.folder, "init", "--quiet", "--initial-branch", "main")
        self.release(VERSION)

    def release(self, version: str) -> None:
        """Commits what there is as a version, and tags it."""
        for name in _WITH_VERSION:
            text = (self.folder / name).read_text()
            (self.folder / name).write_text(text.replace(VERSION, version))
        _git(self.folder, "add", *_NEEDED, ".dockerignore")
        author = ("-c", "user.name=test", "-c", "user.email=test@plainsql.example")
        _git(self.folder, *author, "commit", "--quiet", "--allow-empty", "--message", version)
        _git(self.folder, "tag", f"v{version}")

    def _write_programs(self) -> None:
        programs = self.folder / "programs"
        programs.mkdir()
        build = shlex.join(builder(self.folder / "build"))
        (programs / "docker").write_text(_DOCKER.format(compose=_PODMAN_COMPOSE, build=build))
        (programs / "podman").write_text(_PODMAN.format(podman=shutil.which("podman"), runtime=RUNTIME))
        for each in programs.iterdir():
            each.chmod(0o755)

    @property
    def here(self) -> Path:
        return self.folder / "deploy/compose"

    def set_variables(self, **changed: str) -> None:
        """Changes `.env`, which is a copy of the sample at first."""
        file = self.here / ".env"
        text = (file if file.exists() else self.here / ".env.example").read_text()
        lines = [line for line in text.splitlines() if line.partition("=")[0] not in changed]
        file.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in changed.items()), ""]))

    def variable(self, name: str) -> str:
        """A variable of `.env`."""
        (value,) = re.findall(rf"^{name}=(.*)$", (self.here / ".env").read_text(), re.MULTILINE)
        return str(value)

    def run(self, command: str, *, check: bool = True) -> str:
        """Runs a line of the README, with this site's port of the alias, and returns what it prints."""
        command = command.replace("localhost:8402", f"localhost:{self.alias_port}")
        path = f"{self.folder / 'programs'}:{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", "-c", f"umask 077; {command}"], cwd=self.here, env={**os.environ, "PATH": path},
            capture_output=True, text=True, timeout=_BUILD_LIMIT_S if "init.sh" in command else _LIMIT_S, check=False,
        )  # fmt: skip
        assert not check or ended.returncode == 0, f"{command}: {ended.stdout[-2000:]}{ended.stderr[-4000:]}"
        return ended.stdout

    def is_ready(self) -> bool:
        """Whether the follower's own health check succeeds. podman runs none without systemd."""
        command = f"podman exec {self.container('follower')} plainsql-server health --ready https://alias:8443"
        return self.run(f"{command} >/dev/null 2>&1 && echo ready || true") == "ready\n"

    def wait_until_ready(self) -> None:
        wait_for(
            self.is_ready, _LIMIT_S, lambda: self.run("docker compose ps --all; docker compose logs --tail 20 2>&1")
        )

    def wait_for_upstreams(self, count: int) -> None:
        """Waits until nginx was given this number of data nodes."""
        file = self.here / "generated/alias/plainsql-alias.conf"
        wait_for(lambda: file.read_text().count("    server 10.") == count, _LIMIT_S, file.read_text)

    @property
    def ca_file(self) -> Path:
        return self.here / "secrets/ca.crt"

    def container(self, service: str, number: int = 1) -> str:
        return f"plainsql_{service}_{number}"


def post(sql: str, key: str, ca_file: Path, port: int) -> tuple[int, dict[str, Any]]:
    """Sends a statement to the alias, whose certificate is checked, and returns the status and the body."""
    connection = HTTPSConnection("localhost", port, timeout=30, context=ssl.create_default_context(cafile=ca_file))
    try:
        connection.request("POST", "/v1/query", msgspec.json.encode({"sql": sql}), {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read())
    finally:
        connection.close()


def query(sql: str, key: str, ca_file: Path, port: int) -> dict[str, Any]:
    """Runs a statement through the alias."""
    status, body = post(sql, key, ca_file, port)
    assert status == 200, body
    return body


class Load:
    """Clients that ask all the time, each with a key and a connection of its own for every request."""

    def __init__(self, keys: list[str], ca_file: Path, port: int) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._ca_file, self._port = ca_file, port
        self._is_over = threading.Event()
        self._clients = [threading.Thread(target=self._ask, args=(key,)) for key in keys]

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for client in self._clients:
            client.join()

    def wait_for_more(self, count: int) -> None:
        """Waits until so many further requests were answered."""
        enough = self.answered + count
        wait_for(lambda: self.answered >= enough, _LIMIT_S, lambda: str(self.failed[:5]))

    def is_accepted(self, key: str) -> bool:
        """Asks once, with the key of a customer who has a rate limit."""
        status, body = post("select 1", key, self._ca_file, self._port)
        assert status in (200, 429), body
        return status == 200

    def _ask(self, key: str) -> None:
        while not self._is_over.is_set():
            try:
                status, body = post("select 1", key, self._ca_file, self._port)
            except (OSError, HTTPException) as error:
                self.failed.append(repr(error))
                continue
            if status == 200:
                self.answered += 1
            else:
                self.failed.append(str(body))
