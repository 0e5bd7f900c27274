"""Converts JSON parameters to PostgreSQL's text format, according to the parameter types that PostgreSQL reports.

A parameter arrives as the raw JSON that the client sent. So a number keeps every digit, and JSON for a json or jsonb
parameter is passed through unchanged. A string for bytea is base64, as in results.
"""

from binascii import Error as Base64Error
from binascii import a2b_base64

import msgspec

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.encoding.arrays import quote_element
from plainsql_server.engine.encoding.types import EngineType

_JSON_OIDS = frozenset([114, 3802])
_BYTEA_OID = 17
# The types for which a string is not PostgreSQL's text.
OIDS_WITH_OWN_STRINGS = _JSON_OIDS | {_BYTEA_OID}
# PostgreSQL's MAXDIM.
_MAX_DIMENSIONS = 6
_decode_string = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class TextParameter(bytes):
    """A parameter that is PostgreSQL's text already, whatever its type."""


def text_parameter(raw: bytes, number: int) -> bytes:
    """A parameter whose form depends on the JSON that was sent alone, as the Neon driver's protocol has it.

    A string is PostgreSQL's text, an object is JSON, and an array is an array literal. Raises RequestError.
    """
    if not needs_type(raw):
        return raw
    if raw[:1] == b"[":
        return TextParameter(_untyped_array(raw, number))
    return TextParameter(_string(raw, number) if raw[:1] == b'"' else raw)


def needs_type(raw: bytes) -> bool:
    """Whether the text for this JSON depends on the parameter type. null, booleans and numbers have only one form."""
    return raw[:1] in (b'"', b"[", b"{")


def encode_parameter(raw: bytes, type_: EngineType, number: int) -> bytes | None:
    """Returns the text to send for parameter `$number`, or None for NULL.

    Raises RequestError if the JSON cannot represent a value of that type.
    """
    if isinstance(raw, TextParameter):
        return raw
    if raw == b"null":
        return None
    if not needs_type(raw):
        return raw
    resolved = type_.resolved()
    if resolved.oid in _JSON_OIDS:
        return raw
    if raw[:1] == b'"':
        return _bytea(_string(raw, number), number) if resolved.oid == _BYTEA_OID else _string(raw, number)
    if raw[:1] == b"[" and resolved.element is not None:
        return _array(raw, resolved, number)
    is_array = raw[:1] == b"["
    raise RequestError(
        "invalid_parameter",
        f"Parameter ${number} is {'an array' if is_array else 'an object'}, but the statement expects {type_.name}.",
        hint=(f"For a list of values, write = ANY(${number}) instead of IN (${number}). " if is_array else "")
        + f"For JSON, cast the parameter: ${number}::jsonb. Otherwise, send a string in PostgreSQL's text format.",
    )


def _string(raw: bytes, number: int) -> bytes:
    text = _decode_string(raw)
    if "\0" in text:
        raise RequestError(
            "null_character", f"Parameter ${number} contains a NUL character, which PostgreSQL can't store in text."
        )
    return text.encode()


def _bytea(text: bytes, number: int) -> bytes:
    # PostgreSQL's text for bytes that are not all printable has a backslash, which base64 never has.
    if b"\\" in text:
        return text
    try:
        return b"\\x" + a2b_base64(text, strict_mode=True).hex().encode() if text else text
    except Base64Error as error:
        raise RequestError(
            "invalid_parameter",
            f"Parameter ${number} is of type bytea, and its string isn't base64.",
            hint=r"Send base64 with padding, or PostgreSQL's hexadecimal text, which begins with \x.",
        ) from error


def _array(raw: bytes, array: EngineType, number: int, dimension: int = 1) -> bytes:
    assert array.element is not None
    items = _items(raw, number, dimension)
    return b"{" + array.delimiter.encode().join(_element(item, array, number, dimension) for item in items) + b"}"


def _items(raw: bytes, number: int, dimension: int) -> list[bytes]:
    """The items of a JSON array, which is this many dimensions deep in the parameter."""
    if dimension > _MAX_DIMENSIONS:
        raise _too_many_dimensions(number)
    try:
        return [bytes(item).strip() for item in _decode_list(raw)]
    except RecursionError as error:
        raise _too_many_dimensions(number) from error


def _untyped_array(raw: bytes, number: int, dimension: int = 1) -> bytes:
    items = _items(raw, number, dimension)
    return b"{" + b",".join([_untyped_element(item, number, dimension) for item in items]) + b"}"


def _untyped_element(raw: bytes, number: int, dimension: int) -> bytes:
    if raw == b"null":
        return b"NULL"
    if raw[:1] == b"[":
        return _untyped_array(raw, number, dimension + 1)
    text = text_parameter(raw, number)
    return quote_element(text) if isinstance(text, TextParameter) else text


def _element(raw: bytes, array: EngineType, number: int, dimension: int) -> bytes:
    assert array.element is not None
    if raw == b"null":
        return b"NULL"
    # A nested list is one more dimension, unless the elements are JSON or are arrays themselves (through a domain).
    element = array.element.resolved()
    if raw[:1] == b"[" and element.element is None and element.oid not in _JSON_OIDS:
        return _array(raw, array, number, dimension + 1)
    encoded = encode_parameter(raw, array.element, number)
    assert encoded is not None
    return quote_element(encoded)


def _too_many_dimensions(number: int) -> RequestError:
    return RequestError(
        "invalid_parameter",
        f"Parameter ${number} has too many dimensions: PostgreSQL arrays have at most {_MAX_DIMENSIONS}.",
    )
