"""The files of Compose, without running them. `test_compose.py` does that, in `make test-deploy`."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from plainsql_server import VERSION
from plainsql_server.engine.admin.measures import disk_space_of
from plainsql_server.engine.admin.provisioning import VERSION_FLOOR
from server.tests.install.guide import commands, read_guide

FILES = ("compose.yaml", "compose.tls.yaml", "compose.monitoring.yaml")
FOLDER = Path(__file__).resolve().parents[3] / "deploy/compose"


def services(file: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / file).read_text())["services"]
    return found


@pytest.mark.parametrize("plane", ["data", "control"])
def test_both_planes_count_requests_in_redis(plane: str) -> None:
    # One that did not would grant its share in addition.
    service = services("compose.yaml")[plane]
    assert service["environment"]["PLAINSQL_REDIS_URL_FILE"] == "/etc/plainsql/own/redis.url"
    assert f"./secrets/{plane}:/etc/plainsql/own:ro" in service["volumes"]
    assert "redis" in service["depends_on"]


@pytest.mark.parametrize("name", services("compose.yaml"))
def test_services_have_no_more_rights_than_they_need(name: str) -> None:
    service = services("compose.yaml")[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in services(file)])
def test_every_service_has_a_limit_on_its_memory(file: str, name: str) -> None:
    service = services(file)[name]
    if "image" not in service:
        # An overlay that changes a service of compose.yaml.
        service = services("compose.yaml")[name]
    assert service["mem_limit"]
    for folder in service.get("tmpfs", []):
        # What is in it counts as the service's memory.
        assert mebibytes(folder.partition("size=")[2]) < mebibytes(service["mem_limit"])


def mebibytes(size: str) -> float:
    size = size.replace("${PLAINSQL_CELL_MEMORY_GIB}", "2")
    return float(size[:-1]) * {"m": 1, "g": 1024}[size[-1]]


def test_a_statement_gets_half_of_a_small_cell_and_the_limit_of_cell_files_on_a_large_one(tmp_path: Path) -> None:
    for gib, kibibytes in (("0.5", "262144"), ("2", "1048576"), ("24", "2097152")):
        assert start_postgres("ulimit -d", tmp_path, PLAINSQL_CELL_MEMORY_GIB=gib).strip() == kibibytes, gib


def test_postgresql_starts_without_a_child_that_it_would_take_for_its_own(tmp_path: Path) -> None:
    """If a child of PostgreSQL's process is killed, PostgreSQL restarts for all customers."""
    listed = 'read -r children </proc/$$/task/$$/children\necho "children: $children"'
    assert start_postgres(listed, tmp_path, PLAINSQL_CELL_MEMORY_GIB="2") == "children: \n"


def start_postgres(commands: str, folder: Path, **environment: str) -> str:
    """What the commands write if a program that runs them is started instead of PostgreSQL."""
    script = (FOLDER / "scripts/start-postgres.sh").read_text().replace("/etc/plainsql/settings", str(folder))
    shutil.copy(FOLDER.parent / "cell/memory.conf", folder)
    program = folder / "postgres"
    program.write_text(f"#!/bin/sh\n{commands}\n")
    program.chmod(0o755)
    environment |= {"PATH": f"{folder}:{os.environ['PATH']}", "PGDATA": str(folder)}
    ended = subprocess.run(
        ["/bin/sh", "-c", script, "sh", "plainsql_admin"], env=environment, capture_output=True, text=True, check=True,
        timeout=30,
    )  # fmt: skip
    return ended.stdout


def test_what_is_free_on_the_disk_of_the_cell_is_written_by_a_service_beside_it(tmp_path: Path) -> None:
    cell, beside = (services("compose.yaml")[name] for name in ("cell", "cell-disk"))
    assert beside["environment"]["PGDATA"] == cell["environment"]["PGDATA"]
    assert beside["volumes"][0] == cell["volumes"][0]
    script = FOLDER / "scripts" / Path(beside["entrypoint"][-1]).name
    # Instead of a pause, the script ends.
    (tmp_path / "sleep").write_text('#!/bin/sh\nkill "$PPID"\n')
    (tmp_path / "sleep").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PGDATA": str(tmp_path)}
    for is_running in (False, True):
        if is_running:
            (tmp_path / "postmaster.pid").touch()
        subprocess.run(["/bin/sh", script], env=environment, check=False, timeout=30)
        assert (tmp_path / "plainsql_disk").exists() is is_running
    free, total = map(int, (tmp_path / "plainsql_disk").read_text().split())
    assert 0 < free < total == disk_space_of(tmp_path).total_bytes


def test_the_image_of_postgresql_is_newer_than_the_oldest_that_a_cell_may_have() -> None:
    (major, minor), *_ = re.findall(r"postgres:(\d+)\.(\d+)", (FOLDER / ".env.example").read_text())
    assert int(minor) > VERSION_FLOOR[int(major)]


def test_an_image_is_not_built_from_another_version_than_its_tag_says(tmp_path: Path) -> None:
    here = shutil.copytree(FOLDER, tmp_path / "deploy/compose", ignore=shutil.ignore_patterns("secrets", "generated"))
    shutil.copytree(FOLDER.parent / "docker", tmp_path / "deploy/docker")
    docker = tmp_path / "docker"
    # There is no image, and nothing can be built.
    docker.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\nexit 1\n')
    docker.chmod(0o755)

    def init() -> tuple[str, str]:
        ended = subprocess.run(
            [here / "init.sh"], env={**os.environ, "DOCKER": str(docker)}, capture_output=True, text=True, check=False,
            timeout=30,
        )  # fmt: skip
        assert ended.returncode != 0
        return (tmp_path / "asked").read_text().splitlines()[-1], ended.stderr

    assert init()[0].startswith("build ")
    sample = (here / ".env").read_text()
    (here / ".env").write_text(sample.replace(VERSION, "9.9.9"))
    asked, message = init()
    assert asked == "image inspect localhost/plainsql-server:9.9.9"
    assert f"plainsql-server:9.9.9 does not exist, and this checkout is version {VERSION}" in message


def test_the_upgrade_begins_at_this_version() -> None:
    assert f"The commands upgrade from {VERSION} to " in (FOLDER / "README.md").read_text()


def test_the_guide_has_the_commands_of_the_readme_which_a_test_runs() -> None:
    guide, readme = read_guide("Compose"), (FOLDER / "README.md").read_text()
    beginning, rest = readme.split("\n## What runs\n")
    assert [command for step in guide.steps for command in step] == ["cd deploy/compose", *commands(beginning)]
    upgrade = rest.partition("\n## Upgrade\n")[2].partition("\n### ")[0]
    assert guide.afterwards["Upgrade and roll back with Compose"] == commands(upgrade)


def test_metrics_are_published_on_this_machine_only() -> None:
    ports = [port for each in services("compose.monitoring.yaml").values() for port in each.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize(
    "file", [".env", "acme.txt", "secrets/secrets.keys", "tls/server.key", "generated/cell", "backups/directory"]
)
def test_git_ignores_secrets(file: str) -> None:
    assert subprocess.run(["git", "check-ignore", "--quiet", file], cwd=FOLDER, check=False).returncode == 0
