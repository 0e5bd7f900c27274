from psycopg.pq.abc import PGresult

from plainsql_server.engine.encoding.values import Encoder

class RowWriter:
    def __init__(
        self, between: list[bytes], encoders: list[Encoder | None], kinds: list[int], null: bytes, as_csv: bool
    ) -> None: ...
    def write(self, result: PGresult, first: int, end: int) -> list[bytes]: ...
    def write_long(self, result: PGresult, first: int, end: int) -> list[bytes]: ...
