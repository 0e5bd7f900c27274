import subprocess
from collections.abc import Iterator

import pytest

from server.tests.page import READERS
from server.tests.service import Service, running_service


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """One service for all tests of this folder: they use names of their own and leave nothing in the others' way."""
    with running_service() as running:
        yield running


@pytest.fixture(scope="session")
def npm_packages() -> None:
    """What the programs for Node need, installed."""
    if not (READERS / "node_modules").is_dir():
        command = ["npm", "ci", "--silent", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=READERS, check=True, capture_output=True, timeout=110)
