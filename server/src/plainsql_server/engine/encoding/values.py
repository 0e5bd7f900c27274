"""Encodes PostgreSQL values as JSON. The column's type selects the encoder, never the value.

PostgreSQL sends text in the ISO formats that `address.py` sets, so most values need no decoding: digits are JSON
already.
"""

import base64
import re
from collections.abc import Callable

import msgspec
from psycopg.pq import Escaping

from plainsql_server.core.errors import Outcome, StatementError
from plainsql_server.engine.encoding.arrays import Misread, literal_to_json
from plainsql_server.engine.encoding.types import EngineType

Encoder = Callable[[bytes], bytes]

_NOT_A_NUMBER = frozenset([b"NaN", b"Infinity", b"-Infinity"])
# With other date styles and zones a timestamp can contain any text, even a quotation mark or a line break. ISO 8601
# allows only these characters.
_PLAIN_TIME = re.compile(rb"[0-9][0-9:. +-]*(?: BC)?")
_UTC = re.compile(rb"\+00(?::00)?(?= BC|\Z)")
_OFFSET = re.compile(rb"([+-]\d\d)(:\d\d)?(?::\d\d)?(?= BC|\Z)")
_BACKSLASH_AFTER_HIGH = re.compile(rb"[\x80-\xff]\\")
# Digits of a bytea to encode at once: six of them are three bytes, which base64 encodes alone.
_SLICE = 6 * 16 * 1024
_read_json = msgspec.json.Decoder(msgspec.Raw).decode
_to_json_string = msgspec.json.Encoder().encode


def encoder_for(type_: EngineType, *, big_numbers_as_strings: bool) -> Encoder | None:
    """The JSON encoder for a type. None means that PostgreSQL's text is already JSON."""
    resolved = type_.resolved()
    if resolved.element is not None:
        return array_encoder(resolved, encoder_for(resolved.element, big_numbers_as_strings=big_numbers_as_strings))
    if big_numbers_as_strings and resolved.name in ("int8", "numeric"):
        return _text
    return _ENCODERS.get(resolved.name, _text) if resolved.oid in _SHIPPED_OIDS else _text


def kind_of(encoder: Encoder | None) -> int:
    """The encoder's number in `row_writer.pyx`; 0 for an encoder that must be called for every value."""
    return _KINDS.get(encoder, 0)


def array_encoder(array: EngineType, element_encoder: Encoder | None) -> Encoder:
    """The encoder of arrays as JSON arrays, with this encoder for their elements."""
    element, delimiter = element_encoder or _as_is, array.delimiter

    def encode(literal: bytes) -> bytes:
        try:
            return literal_to_json(literal, element, delimiter)
        except Misread as error:
            raise untranslatable() from error

    return encode


def _as_is(value: bytes) -> bytes:
    return value


def _text(value: bytes) -> bytes:
    try:
        return _to_json_string(value.decode())
    except UnicodeDecodeError as error:
        raise untranslatable() from error


def untranslatable() -> StatementError:
    """The error for text that is not UTF-8."""
    return StatementError(
        "untranslatable_character",
        "The statement changed client_encoding, so its result is not UTF-8.",
        hint="Leave client_encoding set to UTF8.",
        # By the time its rows are encoded, PostgreSQL has completed the statement, or nearly so.
        outcome=Outcome.UNKNOWN,
    )


def _bool(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _number(value: bytes) -> bytes:
    return b'"' + value + b'"' if value in _NOT_A_NUMBER else value


def _timestamp(value: bytes) -> bytes:
    return b'"' + value.replace(b" ", b"T", 1) + b'"' if _PLAIN_TIME.fullmatch(value) else _text(value)


def _timestamptz(value: bytes) -> bytes:
    if not _PLAIN_TIME.fullmatch(value):
        return _text(value)
    zoned = _UTC.sub(b"Z", value) if b"+00" in value else _OFFSET.sub(_full_offset, value)
    return b'"' + zoned.replace(b" ", b"T", 1) + b'"'


def _full_offset(match: re.Match[bytes]) -> bytes:
    # Only reached if the statement itself changes TimeZone. RFC 3339 requires the minutes.
    return match[1] + (match[2] or b":00")


def _json(value: bytes) -> bytes:
    if not value.isascii():
        _check_json(value)
    # In valid JSON, a raw line break can only be white space. Server-sent events and NDJSON lines must not contain one.
    return value.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in value or b"\r" in value else value


def _check_json(value: bytes) -> None:
    # In some encodings, such as GBK, the second byte of a character can be a backslash, which hides the quotation mark
    # that ends a string. That backslash follows a non-ASCII byte, which is rare in real UTF-8; only then is the JSON
    # parsed.
    try:
        value.decode()
        if _BACKSLASH_AFTER_HIGH.search(value):
            _read_json(value)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise untranslatable() from error


def _bytea(value: bytes) -> bytes:
    if value[:2] != b"\\x":
        return b'"' + base64.b64encode(Escaping().unescape_bytea(value)) + b'"'
    # In slices, between which other threads can run.
    slices = [value[start : start + _SLICE] for start in range(2, len(value), _SLICE)]
    return b'"%b"' % b"".join([base64.b64encode(bytes.fromhex(each.decode())) for each in slices])


_ENCODERS: dict[str, Encoder | None] = {
    "bool": _bool,
    "int2": None, "int4": None, "int8": None, "oid": None,
    "numeric": _number, "float4": _number, "float8": _number,
    "timestamptz": _timestamptz, "timestamp": _timestamp,
    "json": _json, "jsonb": _json,
    "bytea": _bytea,
}  # fmt: skip
# The number by which `row_writer.pyx` knows each encoder. It writes ordinary values itself and calls the encoder for
# the rest.
_KINDS: dict[Encoder | None, int] = {
    None: 1, _text: 2, _bool: 3, _number: 4, _timestamp: 5, _timestamptz: 6, _json: 7,
}  # fmt: skip
# A tenant may name a type "int4". Only PostgreSQL's own OIDs get the encoders above.
_SHIPPED_OIDS = frozenset([16, 17, 20, 21, 23, 26, 114, 700, 701, 1114, 1184, 1700, 3802])
