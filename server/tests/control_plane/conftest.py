"""What tests of the control plane start from: an organization and a cell in a directory of the test's own."""

import pytest

from plainsql_server.control_plane import databases, organizations
from plainsql_server.control_plane.spanning import Recovery
from plainsql_server.core.observation import Observation
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.organizations import OrganizationRecord
from server.tests.customers import added_cell
from server.tests.postgres import Postgres


@pytest.fixture
async def organization(directory: Directory) -> OrganizationRecord:
    return await organizations.create(directory, "Acme", "free")


@pytest.fixture
async def cell(directory: Directory, postgres: Postgres) -> CellRecord:
    return await added_cell(directory, "local", postgres.conninfo)


@pytest.fixture
async def database(directory: Directory, organization: OrganizationRecord, cell: CellRecord) -> DatabaseRecord:
    return await databases.create(directory, organization.id, "main")


@pytest.fixture
def seen() -> list[Observation]:
    """What a part of the control plane has observed."""
    return []


@pytest.fixture
def recovery(directory: Directory, seen: list[Observation]) -> Recovery:
    return Recovery(directory, seen.append)
