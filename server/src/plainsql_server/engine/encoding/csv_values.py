"""Values as fields of CSV (RFC 4180): the same texts as in JSON, without JSON's quotation marks.

Owns the quoting. NULL is an empty field, and an empty string is a quoted one, as in PostgreSQL's own CSV.
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
    """How values become fields of CSV; `to_json` is how they would become JSON."""
    if to_json is None:
        # Digits: nothing in them needs quotes.
        return _as_is
    if to_json is _text_to_json:
        return _text

    def encode(value: bytes) -> bytes:
        json = to_json(value)
        # What is JSON itself stays JSON; elsewhere a JSON string stands for its text.
        is_text = json[:1] == b'"' and to_json is not _json_to_json
        return quoted(_decode_json(json).encode() if is_text else json)

    return encode


def quoted(text: bytes) -> bytes:
    """The text as a field, in quotation marks where it could be misread without."""
    return b'"' + text.replace(b'"', b'""') + b'"' if _NEEDS_QUOTES.search(text) else text


def _text(value: bytes) -> bytes:
    if not value.isascii() and _text_to_json is not None:
        # Refuses what is not UTF-8, as in JSON.
        _text_to_json(value)
    return quoted(value)


def _as_is(value: bytes) -> bytes:
    return value
