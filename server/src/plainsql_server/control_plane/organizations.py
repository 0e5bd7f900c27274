"""Creates, renames, suspends and finds organizations, and sets their tiers."""

from plainsql_server.control_plane.names import check_title
from plainsql_server.core.actor import OPERATOR, Actor
from plainsql_server.core.errors import AccessError, ConflictError, RequestError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.limits.tiers import TIERS


async def create(directory: Directory, name: str, tier: str) -> OrganizationRecord:
    """Creates an organization. Raises RequestError for an invalid name or tier."""
    _check_name(name)
    _check_tier(tier)
    return await organizations.insert(directory, new_id(Kind.ORGANIZATION), name, tier, OPERATOR)


async def rename(directory: Directory, organization_id: str, name: str, by: Actor) -> OrganizationRecord:
    """Renames the organization. Raises RequestError for an invalid name."""
    _check_name(name)
    return await organizations.rename(directory, organization_id, name, by)


async def set_tier(directory: Directory, organization_id: str, tier: str) -> OrganizationRecord:
    """Sets the organization's tier. Nodes apply it within a second. Raises RequestError for an unknown tier."""
    _check_tier(tier)
    return await organizations.set_tier(directory, organization_id, tier, OPERATOR)


async def suspend(directory: Directory, organization_id: str) -> OrganizationRecord:
    """Suspends the organization: within a second, all its requests are refused. It keeps its data and its keys."""
    changed = await organizations.set_suspended(directory, organization_id, True, OPERATOR)
    return changed or await get(directory, organization_id)


async def resume(directory: Directory, organization_id: str) -> OrganizationRecord:
    """Ends the organization's suspension. Databases that are suspended themselves stay so."""
    changed = await organizations.set_suspended(directory, organization_id, False, OPERATOR)
    return changed or await get(directory, organization_id)


async def get(directory: Directory, name_or_id: str) -> OrganizationRecord:
    """The organization with that name or id.

    Raises AccessError if there is none, ConflictError if several have this name.
    """
    found = await organizations.find(directory, name_or_id)
    if not found:
        raise AccessError("organization_not_found", f"There is no organization {name_or_id!r}.")
    if len(found) > 1:
        raise ConflictError(
            "organization_ambiguous",
            f"{len(found)} organizations are named {name_or_id!r}.",
            hint=f"Give the ID of one of them: {', '.join(each.id for each in found)}.",
        )
    return found[0]


async def list_(directory: Directory) -> list[OrganizationRecord]:
    """All organizations, oldest first."""
    return await organizations.list_(directory)


def _check_name(name: str) -> None:
    check_title("an organization", name)
    if name.startswith(f"{Kind.ORGANIZATION}_"):
        raise RequestError(
            "invalid_name", f"An organization's name can't start with {Kind.ORGANIZATION}_, because ids do."
        )


def _check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise RequestError("unknown_tier", f"There is no tier {tier!r}.", hint=f"The tiers are {', '.join(TIERS)}.")
