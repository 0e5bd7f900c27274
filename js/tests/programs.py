"""Runs Node's tests and programs against the service. The package is installed and built when first needed."""

import fcntl
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from server.tests import programs
from server.tests.service import Service

JS = Path(__file__).resolve().parents[1]
_BUILD_LIMIT_S = 170
LIMIT_S = 170


def build() -> None:
    """Installs what the package needs for its tests and compiles it, unless that has been done."""
    programs.need("node", "npm")
    with (JS / "package.json").open() as lock:
        # Several workers of pytest may come here at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (JS / "node_modules/.package-lock.json").exists():
            npm("ci", "--silent", "--no-audit", "--no-fund")
        if _is_stale():
            npm("run", "--silent", "build")


def npm(*arguments: str) -> str:
    """Runs npm in the package's folder; what it prints."""
    done = subprocess.run(
        ["npm", *arguments], cwd=JS, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def node(*arguments: str | Path, service: Service | None = None, **environment: str) -> str:
    """Runs Node in the package's folder with the address and key of a service in its environment; what it prints."""
    done = subprocess.run(
        ["node", *arguments], cwd=JS, env={**os.environ, **variables(service), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def variables(service: Service | None) -> Mapping[str, str]:
    """The environment in which Node's programs find the service."""
    if service is None:
        return {}
    # The certificate authority is Node's own setting.
    trusted = {"NODE_EXTRA_CA_CERTS": service.dev["ca_file"]} if service.dev["ca_file"] else {}
    return {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key, **trusted}


def node_test(name: str, service: Service | None = None, **environment: str) -> None:
    """Runs a file of Node's tests, each of which must pass."""
    # Not `node --test`, which starts one more process for each file.
    printed = node("--expose-gc", "--test-reporter=tap", f"tests/{name}.test.mjs", service=service, **environment)
    assert "\n# fail 0\n" in printed, printed
    assert "\n# pass 0\n" not in printed, printed
    assert "\n# skipped 0\n" in printed, printed
    print(*(line for line in printed.splitlines() if line.startswith("measured")), sep="\n")


def installed(folder: Path) -> None:
    """Installs the package in a folder from what `npm publish` would send, with the libraries that it works with."""
    (packed,) = json.loads(npm("pack", "--json", "--silent", "--pack-destination", str(folder)))
    modules = folder / "node_modules"
    (modules / "plainsql").mkdir(parents=True)
    command = ["tar", "-xzf", folder / packed["filename"], "-C", modules / "plainsql", "--strip-components=1"]
    subprocess.run(command, check=True)
    for peer in ("kysely", "drizzle-orm"):
        (modules / peer).symlink_to(JS / "node_modules" / peer)


def _is_stale() -> bool:
    """Whether a source is newer than what was compiled."""
    sources = [*JS.glob("src/*.ts"), JS / "tsconfig.json"]
    newest = max(path.stat().st_mtime for path in sources)
    return any(
        not compiled.exists() or compiled.stat().st_mtime < newest
        for compiled in (JS / f"dist/{path.stem}.js" for path in sources if path.suffix == ".ts")
    )
