"""Encodes values as PostgreSQL writes them: all as JSON strings (`text_encoder`), or the simple types as JSON
(`json_encoder`), as drivers expect that read the Neon driver's protocol.

Our connections have IntervalStyle iso_8601, and these drivers read the style `postgres`, so intervals are rewritten.
"""

import re

from plainsql_server.engine.encoding.arrays import quote_element
from plainsql_server.engine.encoding.types import SHIPPED_TYPES, EngineType
from plainsql_server.engine.encoding.values import Encoder, array_encoder, encoder_for

_INTERVAL_OID, _TEXT_OID = 1186, 25
# bool, int2, int4, float4, float8, json, jsonb
_JSON_OIDS = frozenset([16, 21, 23, 700, 701, 114, 3802])
_PART = rb"(?:(-?[0-9]+)%b)?"
_SECONDS = rb"(?:(-?)([0-9]+)(\.[0-9]+)?S)?"
_INTERVAL = re.compile(
    rb"P(?=[-0-9T])" + b"".join(_PART % unit for unit in (b"Y", b"M", b"D"))
    + rb"(?:T(?=[-0-9])" + _PART % b"H" + _PART % b"M" + _SECONDS + rb")?"
)  # fmt: skip
_UNITS = ("year", "mon", "day")
_text_to_json = encoder_for(SHIPPED_TYPES[_TEXT_OID], big_numbers_as_strings=False)


def text_encoder(type_: EngineType) -> Encoder | None:
    """The encoder of a type's values as JSON strings with PostgreSQL's text."""
    resolved = type_.resolved()
    if resolved.oid == _INTERVAL_OID:
        return _interval
    if _innermost(resolved).oid == _INTERVAL_OID:
        return _intervals
    return _text_to_json


def json_encoder(type_: EngineType) -> Encoder | None:
    """The encoder of a type's values as JSON: booleans, small integers, floats and JSON as such, and arrays of them.

    All others, int8 and numeric among them, are strings with PostgreSQL's text.
    """
    resolved = type_.resolved()
    if resolved.element is not None:
        return array_encoder(resolved, json_encoder(resolved.element))
    if resolved.oid in _JSON_OIDS:
        return encoder_for(resolved, big_numbers_as_strings=True)
    return text_encoder(resolved)


def _innermost(type_: EngineType) -> EngineType:
    return type_ if type_.element is None else _innermost(type_.element.resolved())


def _interval(value: bytes) -> bytes:
    return _to_json(postgres_interval(value))


def _intervals(literal: bytes) -> bytes:
    # ISO 8601 needs no quotes in an array, unlike the other style.
    return _to_json(_INTERVAL.sub(lambda match: _element(postgres_interval(match[0])), literal))


def _element(text: bytes) -> bytes:
    return quote_element(text) if b" " in text else text


def _to_json(text: bytes) -> bytes:
    assert _text_to_json is not None
    return _text_to_json(text)


def postgres_interval(iso: bytes) -> bytes:
    """An interval in IntervalStyle `postgres`, from one in iso_8601. Other text, such as `infinity`, stays as it is."""
    match = _INTERVAL.fullmatch(iso)
    if match is None:
        # The statement itself has changed the style.
        return iso
    years, months, days, hours, minutes, sign, seconds, fraction = [each or b"" for each in match.groups()]
    parts: list[str] = []
    was_negative = False
    for text, unit in zip((years, months, days), _UNITS, strict=True):
        if number := int(text or 0):
            plus = "+" if was_negative and number > 0 else ""
            parts.append(f"{plus}{number} {unit}{'' if number == 1 else 's'}")
            was_negative = number < 0
    if not parts or hours or minutes or seconds:
        is_negative = b"-" in (hours[:1], minutes[:1], sign)
        plus = "-" if is_negative else "+" if was_negative else ""
        clock = [abs(int(each or 0)) for each in (hours, minutes, seconds)]
        parts.append(f"{plus}{clock[0]:02}:{clock[1]:02}:{clock[2]:02}{fraction.decode()}")
    return " ".join(parts).encode()
