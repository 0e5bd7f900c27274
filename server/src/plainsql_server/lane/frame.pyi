MAX_SCALARS: int
MAX_SCALARS_BYTES: int

class Scalars:
    def parse(self, text: bytes) -> list[bytes | None] | None: ...

class Frame:
    before: bytes
    after: bytes
    is_whole: bool
    def __init__(self, before: bytes, after: bytes | None = None) -> None: ...
    def parse(self, body: bytes, scalars: Scalars) -> list[bytes | None] | None: ...
