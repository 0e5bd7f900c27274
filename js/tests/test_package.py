"""The npm package: its size, its types, what is in it, and that it works where it is installed."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from js.tests.programs import JS, npm

# A page loads the core before it can show anything. 4 kB are what one can add without asking; what streams need, in
# addition, is loaded when the first one is opened.
CORE_BYTES_MAX = 4096
OTHER_BYTES_MAX = 1024
# The core and streams in one file.
WHOLE_BYTES_MAX = 4800


@pytest.fixture(scope="module")
def tarball(js_package: None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        (packed,) = json.loads(npm("pack", "--json", "--silent", "--pack-destination", folder))
        yield Path(folder) / packed["filename"]


def test_the_core_has_at_most_4_kb_compressed_and_the_guide_says_what_it_has_with_streams(js_package: None) -> None:
    sizes = json.loads(npm("run", "--silent", "size"))
    print(f"gzipped: {sizes}")
    core = sizes.pop("core")
    assert 2048 < core <= CORE_BYTES_MAX
    whole = sizes.pop("whole")
    assert core < whole <= WHOLE_BYTES_MAX
    for page in ("js/README.md", "docs/javascript.md"):
        text = " ".join((JS.parent / page).read_text(encoding="utf-8").split())
        assert f"core has {core / 1000:.1f} kB compressed, and {whole / 1000:.1f} kB in one file with streams" in text
    assert max(sizes.values()) <= OTHER_BYTES_MAX, sizes


def test_what_is_packed_is_what_npm_and_typescript_expect(js_package: None, tarball: Path) -> None:
    assert "All good!" in npm("exec", "--", "publint", "--strict", str(tarball))
    npm("exec", "--", "attw", "--profile", "esm-only", "--no-emoji", str(tarball))
    listed = subprocess.run(["tar", "-tzf", tarball], capture_output=True, text=True, check=True).stdout.splitlines()
    sources = {path.stem for path in JS.glob("src/*.ts")}
    compiled = {f"package/dist/{name}{end}" for name in sources for end in (".js", ".d.ts")}
    assert set(listed) == {"package/package.json", "package/README.md", "package/LICENSE", *compiled}


def test_the_package_needs_no_other_and_has_the_version_of_the_python_client(js_package: None) -> None:
    described = json.loads((JS / "package.json").read_text())
    assert "dependencies" not in described
    assert set(described["peerDependencies"]) == set(described["peerDependenciesMeta"])
    assert f'VERSION = "{described["version"]}"' in (JS.parent / "client/src/plainsql/__init__.py").read_text()
    # An address in the lock file would name the registry from which somebody once installed.
    assert '"resolved"' not in (JS / "package-lock.json").read_text()
