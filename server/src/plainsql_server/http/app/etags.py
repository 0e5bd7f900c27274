"""ETags: reads If-None-Match to find out whether the caller already has the current version of an answer.

Each route defines what its version is.
"""

from plainsql_server.http.app.contract import Parameter
from plainsql_server.http.server.requests import Request

KNOWN_VERSION = Parameter(
    "If-None-Match",
    "ETags of the responses you have. The status is 304 if one of them is current.",
    {"type": "string"},
    'W/"…"',
)


def is_known(request: Request, version: str) -> bool:
    """Whether the caller has this version. For a GET, weak and strong tags are compared alike."""
    sent = request.header(b"if-none-match")
    if sent is None:
        return False
    tags = {tag.strip().removeprefix("W/").strip('"') for tag in sent.split(",")}
    return "*" in tags or version in tags
