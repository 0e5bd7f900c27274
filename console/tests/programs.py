"""Builds the console, and runs Node's tests of it, which drive Chromium, against a service."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from server.tests import programs
from server.tests.service import Service

CONSOLE = Path(__file__).resolve().parents[1]
ROOT = CONSOLE.parent
FILES = ROOT / "server/src/plainsql_server/http/control/console_files"
# Where screenshots go. The folder is not committed.
SCREENSHOTS = Path(os.environ.get("PLAINSQL_TEST_SCREENSHOTS") or CONSOLE / "screenshots")
_LIMIT_S = 170


def build() -> None:
    """Installs what the console needs and builds it, unless that has been done."""
    programs.need("node", "npm")
    with (CONSOLE / "package.json").open() as lock:
        # Several workers of pytest may come here at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CONSOLE / "node_modules/.package-lock.json").exists():
            npm("ci", "--silent", "--no-audit", "--no-fund")
        if is_stale():
            npm("run", "--silent", "build")


def npm(*arguments: str) -> None:
    """Runs npm in the console's folder."""
    done = subprocess.run(
        ["npm", *arguments], cwd=CONSOLE, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def is_stale() -> bool:
    """Whether a source is newer than what was built."""
    built = FILES / "index.html.gz"
    sources = [path for path in CONSOLE.glob("src/**/*") if path.is_file() and "generated" not in path.parts]
    sources += [ROOT / "js/src", *ROOT.glob("js/src/*.ts"), CONSOLE / "index.html", CONSOLE / "vite.config.ts"]
    return not built.exists() or max(path.stat().st_mtime for path in sources) > built.stat().st_mtime


def node_test(name: str, service: Service, **environment: str) -> str:
    """Runs a file of Node's tests, each of which must pass; what it printed."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    variables = {
        "PLAINSQL_URL": service.data_url, "PLAINSQL_CONTROL_URL": service.control_url, "PLAINSQL_KEY": service.api_key,
        "PLAINSQL_TEST_SCREENSHOTS": str(SCREENSHOTS), "NODE_EXTRA_CA_CERTS": service.dev["ca_file"] or "",
        "PLAINSQL_TEST_PYTHON": sys.executable,
    }  # fmt: skip
    # Not `node --test`, which starts one more process for each file.
    done = subprocess.run(
        ["node", "--test-reporter=tap", f"tests/{name}.test.mjs"], cwd=CONSOLE,
        env={**os.environ, **variables, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    printed = done.stdout
    assert done.returncode == 0, printed
    assert "\n# fail 0\n" in printed, printed
    assert "\n# pass 0\n" not in printed, printed
    assert "\n# skipped 0\n" in printed, printed
    print(*(line for line in printed.splitlines() if line.startswith("measured")), sep="\n")
    return printed
