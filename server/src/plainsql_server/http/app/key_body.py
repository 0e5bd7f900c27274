"""The body of a request that contains its API key.

The model has its own module because msgspec models cannot be compiled (see `kernel.py`).
"""

import msgspec


class BodyWithKey(msgspec.Struct):
    """A body that may contain a key. Other fields are ignored here."""

    api_key: str | None = None


body_with_key = msgspec.json.Decoder(BodyWithKey)
