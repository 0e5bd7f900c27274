"""Images for the tests of deployments, built once."""

import pytest

from server.tests.deploy.containers import PROGRAMS, Images, build_images
from server.tests.programs import need


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    need(*PROGRAMS)
    return build_images(tmp_path_factory.mktemp("build"))
