"""The message about an invalid enum value names the valid ones, wherever the field is."""

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from plainsql_server.http.server.valid_values import explained

pytestmark = pytest.mark.unit


class Colour(Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct):
    """A struct in another one."""

    size: Literal["small", "large"] = "small"


class Outer(msgspec.Struct):
    """What is decoded."""

    colour: Colour | None = None
    sizes: Annotated[list[Annotated[Literal["s", "m", "l"], Meta(description="a size")]], Meta(max_length=9)] = []
    inner: Inner | None = None
    many: list[str | Inner] = []
    number: Annotated[int, Meta(ge=0)] = 0


MESSAGES = [
    ({"colour": "x"}, "Invalid enum value 'x' - at `$.colour`; valid are red and blue"),
    ({"sizes": ["s", "x"]}, "Invalid enum value 'x' - at `$.sizes[1]`; valid are l, m and s"),
    ({"inner": {"size": "x"}}, "Invalid enum value 'x' - at `$.inner.size`; valid are large and small"),
    ({"many": ["a", {"size": "x"}]}, "Invalid enum value 'x' - at `$.many[1].size`; valid are large and small"),
    ({"number": -1}, "Expected `int` >= 0 - at `$.number`"),
]


@pytest.mark.parametrize(("sent", "message"), MESSAGES)
def test_valid_values_are_named(sent: Any, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(msgspec.json.encode(sent), type=Outer)
    assert explained(refused.value, Outer) == message


def test_a_model_that_is_the_choice_itself_needs_no_path() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert("x", Colour)
    assert explained(refused.value, Colour) == "Invalid enum value 'x'"
