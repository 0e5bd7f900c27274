#!/usr/bin/python3
"""runc for machines on which resource limits can't be raised: it removes them from what it is given to run."""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path


def without_limits(file: Path) -> None:
    """Removes the limits from a bundle's configuration, or from the description of a process."""
    described = json.loads(file.read_text())
    described.get("process", described).pop("rlimits", None)
    file.write_text(json.dumps(described))


def main(arguments: list[str]) -> None:
    for option, value in itertools.pairwise(arguments):
        if option == "--bundle":
            without_limits(Path(value) / "config.json")
        elif option == "--process":
            without_limits(Path(value))
    os.execv(shutil.which("runc") or "/usr/sbin/runc", ["runc", *arguments])


main(sys.argv[1:])
