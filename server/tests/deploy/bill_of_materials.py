"""Writes the software bill of materials of an image: all packages of Debian and of Python in it, in CycloneDX format.

    make sbom-image IMAGE=plainsql-server
    python -m server.tests.deploy.bill_of_materials docker plainsql-server > sbom-image.json

It lists what is installed in the image, not what was asked for. The same image gives the same file.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

Json = dict[str, Any]

_DEBIAN = ("dpkg-query", "--show", "--showformat", r"${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n")
_LISTING = r"""
from importlib.metadata import distributions
for each in distributions():
    print(each.name, each.version, sep="\t")
"""
_PYTHON = ("/opt/plainsql/bin/python", "-c", _LISTING)
_CONFINED = ("--rm", "--read-only", "--cap-drop", "all", "--network", "none", "--no-healthcheck")


def bill_of(image: str, run: Callable[..., str]) -> Json:
    """The bill of an image. `run` runs Docker or podman with arguments, and returns what it prints."""

    def printed(program: str, *arguments: str) -> list[str]:
        return run("run", *_CONFINED, "--entrypoint", program, image, *arguments).splitlines()

    return bill(image, printed(*_DEBIAN), printed(*_PYTHON))


def bill(image: str, debian: list[str], python: list[str]) -> Json:
    """The bill of an image with these packages, one per line."""
    name, _, tag = image.rpartition("/")[2].partition(":")
    components = sorted([*_debian(debian), *_python(python)], key=lambda each: str(each["bom-ref"]))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": tag or "latest"}},
        "components": components,
    }


def _debian(lines: list[str]) -> Iterator[Json]:
    for line in lines:
        status, name, version, architecture = line.split("\t")
        # Others were removed and left their configuration.
        if status.startswith("ii"):
            yield _component(f"deb/debian/{name}", name, version, f"?arch={architecture}&distro=debian-12")


def _python(lines: list[str]) -> Iterator[Json]:
    for line in lines:
        name, version = line.split("\t")
        yield _component(f"pypi/{re.sub(r'[-_.]+', '-', name).lower()}", name, version)


def _component(path: str, name: str, version: str, qualifiers: str = "") -> Json:
    url = f"pkg:{path}@{quote(version, safe='')}{qualifiers}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _main(program: str, image: str) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout

    json.dump(bill_of(image, run), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    _main(*sys.argv[1:])
