"""ETags: whether a caller has an answer already, by the version that it names.

Owns reading If-None-Match, and its place in the contract. What a version is, its route says.
"""

from plainsql_server.http.app.contract import Parameter
from plainsql_server.http.server.requests import Request

KNOWN_VERSION = Parameter(
    "If-None-Match", "ETags of answers that you have; 304 if one of them still holds.", {"type": "string"}, 'W/"…"'
)


def is_known(request: Request, version: str) -> bool:
    """Whether the caller has this version. Whether the tag is weak makes no difference to a GET."""
    sent = request.header(b"if-none-match")
    if sent is None:
        return False
    tags = {tag.strip().removeprefix("W/").strip('"') for tag in sent.split(",")}
    return "*" in tags or version in tags
