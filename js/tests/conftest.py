"""What the tests of the npm package start from."""

import pytest

from js.tests.programs import build


@pytest.fixture(scope="session")
def js_package() -> None:
    """The npm package, compiled."""
    build()
