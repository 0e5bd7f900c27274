"""Fields that several bodies have, described as strictly as the rules behind them judge.

Owns the descriptions. The rules are elsewhere, and have codes of their own for what they refuse, so that nothing here
is checked while a body is decoded; schemathesis tries that both say the same.
"""

from typing import Annotated

from msgspec import Meta

from plainsql_server.control_plane.names import TITLE_LENGTH
from plainsql_server.core.names import DATABASE_NAME

DATABASE_NAME_PATTERN = "^" + DATABASE_NAME.pattern.removesuffix(r"\Z") + "$"
DatabaseName = Annotated[str, Meta(extra_json_schema={"pattern": DATABASE_NAME_PATTERN})]

# A title is any printable text, which patterns cannot say for every reader of them; so it is a format of our own.
Title = Annotated[
    str,
    Meta(
        description=f"1 to {TITLE_LENGTH} printable characters that neither begin nor end with a space.",
        extra_json_schema={"minLength": 1, "maxLength": TITLE_LENGTH, "format": "title"},
    ),
]
