LENGTH: int
REQUEST_ID: int
TRACEPARENT: int
SECRET: int
DATABASE: int
MAX_BODY_BYTES: int

class KnownHead:
    COMPLETE: int
    body_at: int
    body_size: int
    secret_at: int
    database_at: int
    database_size: int
    id_at: int
    id_size: int
    trace_at: int
    def __init__(self, parts: tuple[bytes, ...], kinds: tuple[int, ...]) -> None: ...
    @property
    def key(self) -> tuple[object, ...]: ...
    def match(self, data: bytes) -> int: ...
