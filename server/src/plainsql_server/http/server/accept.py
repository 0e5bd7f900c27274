"""In which form a query's answer is told: the Accept header and the statement's hint.

Owns the choice. A client that takes JSON as gladly as a stream gets JSON; the hint in the statement means a
stream whatever the header says, and the header then only says of which form.
"""

from collections.abc import Sequence

_NOTHING_SPECIAL = frozenset([None, b"*/*", b"application/json"])


def preferred(accept: bytes | None, forms: Sequence[bytes], *, must: bool) -> bytes | None:
    """The media type of the stream that the client wants, one of `forms`, or None if it wants JSON.

    With `must` there will be a stream: the first form, unless the client names another.
    """
    named = {} if accept in _NOTHING_SPECIAL or accept is None else _qualities(accept)
    wanted = [form for form in forms if named.get(form, 0.0) > 0.0]
    if not wanted:
        return forms[0] if must else None
    # A stable order: of equals, the first.
    best = max(wanted, key=named.__getitem__)
    if must or named[best] > _quality_of_json(named):
        return best
    return None


def _quality_of_json(named: dict[bytes, float]) -> float:
    # Whoever names a stream, and JSON only by a wildcard that is no better, means the stream.
    if b"application/json" in named:
        return named[b"application/json"]
    wildcards = [named[each] for each in (b"application/*", b"*/*") if each in named]
    return wildcards[0] - 0.0001 if wildcards else 0.0


def _qualities(accept: bytes) -> dict[bytes, float]:
    named: dict[bytes, float] = {}
    for part in accept.lower().split(b","):
        media_type, *parameters = [piece.strip() for piece in part.split(b";")]
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition(b"=")
            if name.strip() == b"q":
                quality = _number(value.strip())
        named[media_type] = max(quality, named.get(media_type, 0.0))
    return named


def _number(text: bytes) -> float:
    # What is no number between 0 and 1 says nothing about what the client wants.
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
