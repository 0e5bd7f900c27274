"""Images for the tests of deployments, built once."""

import pytest

from server.tests.deploy.containers import Images, build_images, missing_programs


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    missing = missing_programs()
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    return build_images(tmp_path_factory.mktemp("build"))
