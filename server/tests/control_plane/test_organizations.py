"""Rules about organizations."""

import pytest

from plainsql_server.control_plane import organizations
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import AccessError, ConflictError, RequestError
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.organizations import OrganizationRecord


async def test_an_organization_is_found_by_name_and_by_id(
    directory: Directory, organization: OrganizationRecord
) -> None:
    assert await organizations.get(directory, "Acme") == organization
    assert await organizations.get(directory, organization.id) == organization
    assert await organizations.list_(directory) == [organization]


async def test_an_unknown_organization_is_not_found(directory: Directory) -> None:
    with pytest.raises(AccessError):
        await organizations.get(directory, "nobody")


async def test_a_name_is_a_label_and_operators_are_asked_which_one_they_mean(
    directory: Directory, organization: OrganizationRecord
) -> None:
    second = await organizations.create(directory, "Acme", "standard")
    other = await organizations.create(directory, "Other", "free")
    assert (await organizations.rename(directory, other.id, "Acme", OPERATOR)).name == "Acme"
    with pytest.raises(ConflictError) as failure:
        await organizations.get(directory, "Acme")
    assert failure.value.code == "organization_ambiguous"
    assert f"{organization.id}, {second.id}, {other.id}" in (failure.value.hint or "")
    assert await organizations.get(directory, second.id) == second


@pytest.mark.parametrize(("name", "tier"), [("New", "platinum"), ("", "free"), ("org_x", "free"), ("a\0b", "free")])
async def test_an_invalid_organization_is_rejected(directory: Directory, name: str, tier: str) -> None:
    with pytest.raises(RequestError):
        await organizations.create(directory, name, tier)
