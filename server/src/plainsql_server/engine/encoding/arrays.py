"""The syntax of PostgreSQL's array literals: `{1,NULL,"a b"}` to nested JSON arrays, and the quoting of elements.

What an element means is up to the caller, who passes an encoder for it.
"""

import re
from collections.abc import Callable

# Everything up to the next special character, outside and inside quotes.
_BARE = {delimiter: re.compile(rb"[^{}\"" + re.escape(delimiter.encode()) + rb"]*") for delimiter in (",", ";")}
_QUOTED = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)

Encode = Callable[[bytes], bytes]


class Misread(Exception):
    """The literal is not in the encoding in which it is read, so parts of characters look like special characters."""


def literal_to_json(literal: bytes, encode: Encode, delimiter: str = ",") -> bytes:
    """Converts an array literal to JSON with the same nesting. Explicit lower bounds (`[0:1]={…}`) are dropped.

    Works without recursion: PostgreSQL limits the dimensions, this function does not. Raises Misread rather than
    returning anything but one JSON array.
    """
    position = literal.index(b"{")
    bare = _BARE[delimiter]
    separator = delimiter.encode()[0]
    parts: list[bytes] = []
    depth, is_due = 0, True
    while position < len(literal):
        character = literal[position]
        if character in (0x7D, separator):
            depth -= character == 0x7D
            is_due = character == separator
            parts.append(b"," if is_due else b"]")
            position += 1
            if depth == 0 and position < len(literal):
                raise Misread
            continue
        if not is_due:
            raise Misread
        is_due = character == 0x7B
        if is_due:
            parts.append(b"[")
            depth += 1
            position += 1
        else:
            match = (_QUOTED if character == 0x22 else bare).match(literal, position)
            if match is None:
                raise Misread
            parts.append(_element(match, encode))
            position = match.end()
    if depth:
        raise Misread
    return b"".join(parts)


def _element(match: re.Match[bytes], encode: Encode) -> bytes:
    if match.lastindex:
        return encode(_unescaped(match[1]))
    return b"null" if match[0] == b"NULL" else encode(match[0])


def quote_element(element: bytes) -> bytes:
    """Quotes an element for an array literal, so that none of its text is special."""
    return b'"' + element.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _unescaped(quoted: bytes) -> bytes:
    # Split at pairs of backslashes first. Every backslash left then escapes the character after it.
    if b"\\" not in quoted:
        return quoted
    return b"\\".join(part.replace(b"\\", b"") for part in quoted.split(b"\\\\"))
