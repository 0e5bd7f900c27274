"""Which plane serves a path: a request to the wrong plane is answered with the address of the right one.

    table = RouteTable(routes, OtherPlane("control", control_url))

A test compares these paths with the routes of both planes.
"""

import re
from dataclasses import dataclass
from typing import Literal

PlaneName = Literal["data", "control"]

# Each with all paths below it. The alias's nginx configuration names them, too.
CONTROL_PATHS = (
    "/v1/session", "/v1/organizations", "/v1/databases", "/v1/restores", "/v1/keys", "/v1/usage", "/v1/audit", "/mcp",
    "/console",
)  # fmt: skip
_CONTROL_PATHS = re.compile(rf"(?:{'|'.join(CONTROL_PATHS)})(?:/|\Z)")
_DATA_PATHS = re.compile(
    r"/(?:v1/query|query|sql|v1/transaction|v1/requests|tables|bench|capabilities|storage/test|admin/reset)(?:/|\Z)"
)


@dataclass(frozen=True, slots=True)
class OtherPlane:
    """The plane that a client may have meant."""

    name: PlaneName
    url: str

    def serves(self, path: str) -> bool:
        paths = _CONTROL_PATHS if self.name == "control" else _DATA_PATHS
        return paths.match(path) is not None
