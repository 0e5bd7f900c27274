"""The image: what is in it, that it needs no rights, and that two builds give the same files.

`make test-deploy` runs this with podman and buildah.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from plainsql_server import VERSION
from server.tests.deploy.bill_of_materials import bill, bill_of
from server.tests.deploy.containers import PIP_FOLDER, ROOT, Images, build, podman

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
_AGAIN = "localhost/plainsql-test/server:again"
# A little more than the figures in the README of the image.
_SIZE_MAX_BYTES = 300_000_000
_PACKAGES_MAX = 130
# Without rights, as the guides run it.
CONFINED = ("--rm", "--read-only", "--cap-drop", "all", "--network", "none", "--no-healthcheck")


@pytest.mark.unit
def test_the_label_and_the_sample_have_this_version() -> None:
    assert f'org.opencontainers.image.version="{VERSION}"' in DOCKERFILE.read_text()
    sample = (ROOT / "deploy/compose/.env.example").read_text()
    assert set(re.findall(r"plainsql-server:([0-9.]+)", sample)) == {VERSION}


@pytest.mark.full
def test_it_runs_without_rights_as_a_numeric_user(images: Images) -> None:
    assert podman("run", *CONFINED, images.server, "--version").stdout == f"plainsql-server {VERSION} (compiled)\n"
    (image,) = json.loads(podman("image", "inspect", images.server).stdout)
    assert image["User"] == "10001:10001"
    config = image["Config"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Labels"]["org.opencontainers.image.version"] == VERSION
    assert image["Healthcheck"]["Test"] == ["CMD", "plainsql-server", "health"]
    assert image["Size"] < _SIZE_MAX_BYTES


@pytest.mark.full
def test_it_has_no_compiler_no_pip_and_no_package_lists(images: Images) -> None:
    files = contents(images.server)
    assert not [
        each
        for each in files
        if re.search(r"(bin/|/)(gcc|cc|pip3?|ensurepip)(-[\d.]+)?$", each) and "share" not in each
    ]
    assert not [each for each in files if each.startswith(("var/lib/apt/lists/", "build/", f"{PIP_FOLDER[1:]}/"))]
    # The mount left an empty file.
    assert files.get("etc/pip.conf", ("",))[-1] in ("", hashlib.sha256(b"").hexdigest())
    packages = podman("run", *CONFINED, "--entrypoint", "dpkg-query", images.server, "-W").stdout.splitlines()
    assert len(packages) <= _PACKAGES_MAX


@pytest.mark.unit
def test_a_bill_has_the_packages_that_are_installed() -> None:
    debian = ["ii \tlibc6\t2.36-9+deb12u13\tamd64", "rc \tgone\t1\tamd64", "ii \ttzdata\t2025b-0+deb12u2\tall"]
    made = bill("registry.example:5000/plainsql-server:1", debian, ["psycopg_binary\t3.3.2"])
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"] == {"type": "container", "name": "plainsql-server", "version": "1"}
    assert [each["purl"] for each in made["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12",
        "pkg:deb/debian/tzdata@2025b-0%2Bdeb12u2?arch=all&distro=debian-12",
        "pkg:pypi/psycopg-binary@3.3.2",
    ]
    assert made["components"][2]["name"] == "psycopg_binary"


@pytest.mark.full
@pytest.mark.parametrize("target", ["server", "ops"])
def test_its_bill_of_materials_lists_debians_packages_and_our_requirements(images: Images, target: str) -> None:
    made = bill_of(getattr(images, target), lambda *arguments: podman(*arguments).stdout)
    urls = {each["purl"] for each in made["components"]}
    pinned = re.findall(r"^([a-z0-9-]+)==(\S+) +\\$", (ROOT / "requirements/server.txt").read_text(), re.MULTILINE)
    assert len(pinned) > 10
    assert {f"pkg:pypi/{name}@{version}" for name, version in pinned} <= urls
    assert f"pkg:pypi/plainsql-server@{VERSION}" in urls
    debian = {each["name"] for each in made["components"] if each["purl"].startswith("pkg:deb/")}
    assert {"libc6", "ca-certificates", "python3.11-minimal"} <= debian
    assert ("postgresql-client-15" in debian) == (target == "ops")


@pytest.mark.full
def test_operators_have_the_programs_for_backups(images: Images) -> None:
    for program in ("pg_dump", "pg_restore"):
        assert "PostgreSQL" in podman("run", *CONFINED, "--entrypoint", program, images.ops, "--version").stdout


@pytest.mark.full
def test_two_builds_have_the_same_files(images: Images, tmp_path: Path) -> None:
    build(tmp_path, _AGAIN, "server", layers=False)
    try:
        first, again = contents(images.server), contents(_AGAIN)
        different = {name for name in first.keys() | again.keys() if first.get(name) != again.get(name)}
        assert not different, sorted(different)[:20]
        assert len(first) > 1000
    finally:
        podman("rmi", "--force", _AGAIN)


def contents(image: str) -> dict[str, tuple[object, ...]]:
    """Every file of an image, with its kind, permissions, owner and hash, but not its time."""
    made = podman("create", "--no-healthcheck", image).stdout.strip()
    try:
        return dict(_exported(made))
    finally:
        podman("rm", made)


def _exported(container: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    mounted = Path(podman("mount", container).stdout.strip())
    try:
        for path in mounted.rglob("*"):
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
            target = str(path.readlink()) if path.is_symlink() else ""
            yield str(path.relative_to(mounted)), (status.st_mode, status.st_uid, status.st_gid, target, content)
    finally:
        podman("umount", container)
