"""PostgreSQL's array literals: `{1,NULL,"a b"}` to nested lists and back.

Owns the syntax of the literal. Refuses to know what an element means: encoding one is the caller's.
"""

import re
from collections.abc import Callable

# Everything up to the next character that means something, outside and inside quotes.
_BARE = {delimiter: re.compile(rb"[^{}\"" + re.escape(delimiter.encode()) + rb"]*") for delimiter in (",", ";")}
_QUOTED = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)

Encode = Callable[[bytes], bytes]


def literal_to_json(literal: bytes, encode: Encode, delimiter: str = ",") -> bytes:
    """The array as JSON, nested as the engine nests it. Explicit lower bounds (`[0:1]={…}`) are dropped.

    Works without recursion, because PostgreSQL limits dimensions, not us.
    """
    position = literal.index(b"{")
    bare = _BARE[delimiter]
    separator = delimiter.encode()[0]
    parts: list[bytes] = []
    while position < len(literal):
        character = literal[position]
        if character == 0x22:
            match = _QUOTED.match(literal, position)
            assert match is not None, "the engine closes the quotes that it opens"
            parts.append(encode(_unescaped(match[1])))
            position = match.end()
        elif character in b"{}" or character == separator:
            parts.append({0x7B: b"[", 0x7D: b"]"}.get(character, b","))
            position += 1
        else:
            match = bare.match(literal, position)
            assert match is not None, "the pattern matches nothing, too"
            parts.append(b"null" if match[0] == b"NULL" else encode(match[0]))
            position = match.end()
    return b"".join(parts)


def quote_element(element: bytes) -> bytes:
    """An element as it stands in a literal, quoted, so that no text in it can mean anything else."""
    return b'"' + element.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _unescaped(quoted: bytes) -> bytes:
    # Pairs of backslashes first: what is left of a backslash then only guards the character after it.
    if b"\\" not in quoted:
        return quoted
    return b"\\".join(part.replace(b"\\", b"") for part in quoted.split(b"\\\\"))
