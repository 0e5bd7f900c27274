"""Encodes values as CSV fields (RFC 4180): the same text as in JSON, without JSON's quotation marks.

NULL is an empty field and an empty string is `""`, as in PostgreSQL's own CSV.
"""

import re

import msgspec

from plainsql_server.engine.encoding.types import SHIPPED_TYPES
from plainsql_server.engine.encoding.values import Encoder, encoder_for

NULL = b""

_NEEDS_QUOTES = re.compile(rb'[",\r\n]|\A\s|\s\Z|\A\Z')
_TEXT_OID, _JSON_OID = 25, 114
_text_to_json = encoder_for(SHIPPED_TYPES[_TEXT_OID], big_numbers_as_strings=False)
_json_to_json = encoder_for(SHIPPED_TYPES[_JSON_OID], big_numbers_as_strings=False)
_decode_json = msgspec.json.Decoder(str).decode


def csv_encoder(to_json: Encoder | None) -> Encoder:
    """The CSV encoder for values whose JSON encoder is `to_json`."""
    if to_json is None:
        # Digits never need quotes.
        return _as_is
    if to_json is _text_to_json:
        return _text

    def encode(value: bytes) -> bytes:
        json = to_json(value)
        # Values of the JSON types stay JSON. For other types, a JSON string becomes its text.
        is_text = json[:1] == b'"' and to_json is not _json_to_json
        return quoted(_decode_json(json).encode() if is_text else json)

    return encode


def quoted(text: bytes) -> bytes:
    """The text as a field, in quotation marks if it could be misread without them."""
    return b'"' + text.replace(b'"', b'""') + b'"' if _NEEDS_QUOTES.search(text) else text


def _text(value: bytes) -> bytes:
    if not value.isascii() and _text_to_json is not None:
        # Raises if the text is not UTF-8, as for JSON.
        _text_to_json(value)
    return quoted(value)


def _as_is(value: bytes) -> bytes:
    return value
