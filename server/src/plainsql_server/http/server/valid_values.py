"""Completes msgspec's message about an invalid enum value with the values that are valid.

    explained(error, QueryBody)    # "Invalid enum value 'x' - at `$.row_format`; valid are object and array"

msgspec names the field but not its values, so they are looked up in the model.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

_PREFIX = "Invalid enum value"
_PLACE = re.compile(r" - at `\$(?P<path>[^`]*)`\Z")
# A field, or an element of an array.
_PART = re.compile(r"\.(?P<field>[^.\[]+)|\[[^\]]*\]")


def explained(error: msgspec.ValidationError, model: Any) -> str:
    """The message of an error that decoding this model raised."""
    message = str(error)
    place = _PLACE.search(message)
    if not message.startswith(_PREFIX) or place is None:
        return message
    types: list[inspect.Type] = [inspect.type_info(model)]
    for part in _PART.finditer(place["path"]):
        types = [inner for type_ in _alternatives(types) for inner in _inside(type_, part["field"])]
    values = [str(value) for type_ in _alternatives(types) for value in _values(type_)]
    return f"{message}; valid are {', '.join(values[:-1])} and {values[-1]}" if len(values) > 1 else message


def _alternatives(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for type_ in types:
        if isinstance(type_, inspect.Metadata):
            yield from _alternatives([type_.type])
        elif isinstance(type_, inspect.UnionType):
            yield from _alternatives(type_.types)
        else:
            yield type_


def _inside(type_: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """The types of a field, or of the elements for None."""
    if field is None and isinstance(type_, inspect.ListType):
        yield type_.item_type
    elif isinstance(type_, inspect.StructType):
        yield from (each.type for each in type_.fields if each.encode_name == field)


def _values(type_: inspect.Type) -> Iterable[Any]:
    if isinstance(type_, inspect.EnumType):
        return [member.value for member in type_.cls]
    return type_.values if isinstance(type_, inspect.LiteralType) else ()
