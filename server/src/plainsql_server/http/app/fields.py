"""Fields that several bodies share, described as strictly as the rules that validate them.

The rules are elsewhere and have their own error codes, so these constraints are not checked while a body is decoded.
Tests with schemathesis verify that the descriptions and the rules agree.
"""

from typing import Annotated

from msgspec import Meta

from plainsql_server.control_plane.names import TITLE_LENGTH
from plainsql_server.core.names import DATABASE_NAME

DATABASE_NAME_PATTERN = "^" + DATABASE_NAME.pattern.removesuffix(r"\Z") + "$"
DatabaseName = Annotated[str, Meta(extra_json_schema={"pattern": DATABASE_NAME_PATTERN})]

# A title is any printable text. No regular expression dialect that all tools share can say that, hence our own format.
Title = Annotated[
    str,
    Meta(
        description=f"1 to {TITLE_LENGTH} printable characters, with no leading or trailing space.",
        extra_json_schema={"minLength": 1, "maxLength": TITLE_LENGTH, "format": "title"},
    ),
]
