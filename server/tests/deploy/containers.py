"""Builds images and runs containers with podman, on a machine that reaches no image registry.

    images = build_images(tmp_path)
    podman("run", "--rm", images.server, "--version").stdout

The base is a Debian 12 that mmdebstrap makes, without documentation as in `debian:12-slim`. It is kept from run to run,
as are the layers of the images. pip in a build uses this machine's configuration, which is mounted and never becomes a
part of the image.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from console.tests.programs import build as build_console

ROOT = Path(__file__).resolve().parents[3]
BASE = "localhost/plainsql-test/debian:12-slim"
OTHERS = "localhost/plainsql-test/others:12"
SERVER, OPS = "localhost/plainsql-test/server:one", "localhost/plainsql-test/server:one-ops"
PROGRAMS = ("podman", "buildah", "runc", "netavark", "aardvark-dns", "iptables", "mmdebstrap")
RUNTIME = Path(__file__).with_name("runc_without_limits.py")
PIP_FOLDER = "/run/pip-of-the-machine"
_NOT_IN_SLIM = ("doc", "info", "locale", "man")
_HOURS = 1800.0


@dataclass(frozen=True, slots=True)
class Images:
    """The names of the images that a test uses."""

    server: str = SERVER
    ops: str = OPS
    others: str = OTHERS


def podman(
    *arguments: str | Path, check: bool = True, timeout: float = 300.0, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run podman with a runtime that works where limits can't be raised."""
    return _run(["podman", "--runtime", RUNTIME, *arguments], check=check, timeout=timeout, environment=environment)


def build_images(folder: Path) -> Images:
    """Build what is needed to run the service. `folder` gets the files of the build."""
    make_base(folder)
    build(folder, SERVER, "server")
    build(folder, OPS, "ops")
    dockerfile = Path(__file__).with_name("others.Dockerfile")
    _run(["buildah", "build", *_BUILD, "--layers", "--file", dockerfile, "--tag", OTHERS, dockerfile.parent])
    return Images()


_BUILD = ("--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={BASE}")


def make_base(folder: Path) -> None:
    """Make the base image, unless there is one."""
    if podman("image", "exists", BASE, check=False).returncode == 0:
        return
    archive = folder / "base.tar"
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in _NOT_IN_SLIM]
    sources = next(Path("/etc/apt/sources.list.d").glob("debian.sources"), Path("/etc/apt/sources.list"))
    _run(
        [
            "mmdebstrap",
            "--variant=minbase",
            '--aptopt=APT::Sandbox::User "root"',
            *excluded,
            "bookworm",
            archive,
            sources,
        ]
    )
    podman("import", archive, BASE)
    archive.unlink()


def build(folder: Path, tag: str, target: str, *, layers: bool = True) -> None:
    """Build a target of the Dockerfile."""
    build_console()
    dockerfile = ROOT / "deploy/docker/Dockerfile"
    cache = "--layers" if layers else "--no-cache"
    _run([*builder(folder), cache, "--file", dockerfile, "--target", target, "--tag", tag, ROOT])


def builder(folder: Path) -> list[str]:
    """What takes the place of `docker build` here. `folder` gets the configuration of pip."""
    return ["buildah", "build", *_BUILD, *_pip_mounts(folder)]


def _pip_mounts(folder: Path) -> list[str]:
    """Options that give pip in a build this machine's certificates, indexes and wheels."""
    made = folder / "pip"
    made.mkdir(parents=True, exist_ok=True)
    listed = _run([sys.executable, "-m", "pip", "config", "list"]).stdout
    values = dict(re.findall(r"^(?:global|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    mounts = [f"{made}:{PIP_FOLDER}:ro", f"{made}/pip.conf:/etc/pip.conf:ro"]
    if "cert" in values:
        shutil.copy(values["cert"], made / "ca.crt")
        values["cert"] = f"{PIP_FOLDER}/ca.crt"
    for path in sorted({*re.findall(r"(?:file://|(?<!\S))(/[^/\s]+/[^/\s]+)", " ".join(_places(values)))}):
        mounts.append(f"{path}:{path}:ro")
    lines = [f"{name} = {value}" for name, value in values.items()]
    (made / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    return [argument for mount in mounts for argument in ("--volume", mount)]


def _places(values: dict[str, str]) -> list[str]:
    return [values[name] for name in ("index-url", "extra-index-url", "find-links") if name in values]


def _run(
    command: Sequence[str | Path],
    *,
    check: bool = True,
    timeout: float = _HOURS,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        ["nice", "-n", "15", *command], capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert not check or ended.returncode == 0, f"{command}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
    return ended
