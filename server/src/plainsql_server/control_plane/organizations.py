"""Rules about organizations: their names and tiers.

Owns what may be created and how one is found. Refuses to know how they are stored.
"""

from plainsql_server.control_plane.names import check_title
from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.organizations import OrganizationRecord
from plainsql_server.limits.tiers import TIERS


async def create(directory: Directory, name: str, tier: str) -> OrganizationRecord:
    """A new organization. Raises RequestError for a name or tier that cannot be, ConflictError for a taken name."""
    check_title("an organization", name)
    if name.startswith(f"{Kind.ORGANIZATION}_"):
        raise RequestError("invalid_name", f"An organization's name cannot begin with {Kind.ORGANIZATION}_, as ids do.")
    if tier not in TIERS:
        raise RequestError("unknown_tier", f"There is no tier {tier!r}.", hint=f"The tiers are {', '.join(TIERS)}.")
    return await organizations.insert(directory, new_id(Kind.ORGANIZATION), name, tier)


async def get(directory: Directory, name_or_id: str) -> OrganizationRecord:
    """The organization of that name or id. Raises AccessError if there is none."""
    found = await organizations.find(directory, name_or_id)
    if found is None:
        raise AccessError("organization_not_found", f"There is no organization {name_or_id!r}.")
    return found


async def list_(directory: Directory) -> list[OrganizationRecord]:
    """Every organization, oldest first."""
    return await organizations.list_(directory)
