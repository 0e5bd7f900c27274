"""The body of a request whose key is in it.

Owns the model, apart from its use, because msgspec's models cannot be compiled (see `kernel.py`).
"""

import msgspec


class BodyWithKey(msgspec.Struct):
    """Whatever else it has, and perhaps a key."""

    api_key: str | None = None


body_with_key = msgspec.json.Decoder(BodyWithKey)
