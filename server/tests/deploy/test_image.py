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
from server.tests.deploy.containers import PIP_FOLDER, ROOT, Images, build, podman

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
_AGAIN = "localhost/plainsql-test/server:again"
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
    print(f"\n{image['Size'] / 1e6:.0f} MB")


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
    print(f"\n{len(packages)} packages of Debian, {len(files)} files")


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
