"""What the tests of the console start from."""

import pytest

from console.tests.programs import build


@pytest.fixture(scope="session")
def console_built() -> None:
    """The console, built into the server."""
    build()
