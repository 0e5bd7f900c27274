"""Chooses the format of a query's answer from the Accept header and the statement's STREAM hint.

On a tie between JSON and a stream, JSON wins, unless the header means JSON only by a wildcard. The hint always requests
a stream; the header then only chooses its format.
"""

from collections.abc import Sequence

_NOTHING_SPECIAL = frozenset([None, b"*/*", b"application/json"])


def preferred(accept: bytes | None, offers: Sequence[bytes], *, must: bool) -> bytes | None:
    """Returns the media type of the requested stream, one of `offers`, or None for JSON.

    With `must`, the answer is always a stream: the first of `offers`, unless the client names another.
    """
    named = {} if accept in _NOTHING_SPECIAL or accept is None else _qualities(accept)
    wanted = [offered for offered in offers if named.get(offered, 0.0) > 0.0]
    if not wanted:
        return offers[0] if must else None
    # `max` returns the first of equals, so the order of `offers` breaks ties.
    best = max(wanted, key=named.__getitem__)
    if must or named[best] > _quality_of_json(named):
        return best
    return None


def _quality_of_json(named: dict[bytes, float]) -> float:
    # A client that names a stream, and JSON only through a wildcard of the same quality, wants the stream.
    if b"application/json" in named:
        return named[b"application/json"]
    wildcards = [named[each] for each in (b"application/*", b"*/*") if each in named]
    return wildcards[0] - 0.0001 if wildcards else 0.0


def _qualities(accept: bytes) -> dict[bytes, float]:
    named: dict[bytes, float] = {}
    for part in accept.lower().split(b","):
        media_type, *parameters = [text.strip() for text in part.split(b";")]
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition(b"=")
            if name.strip() == b"q":
                quality = _number(value.strip())
        named[media_type] = max(quality, named.get(media_type, 0.0))
    return named


def _number(text: bytes) -> float:
    # Ignore a quality that isn't a number between 0 and 1.
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
