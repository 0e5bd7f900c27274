from plainsql_server.directory.tally import Tally
from plainsql_server.logs import Log
from plainsql_server.metrics import Metrics

class Report:
    def __init__(self, route: str, log: Log, metrics: Metrics, tally: Tally) -> None: ...
    def note(
        self,
        caller: object,
        request_id: bytes,
        trace_id: bytes | None,
        total_us: int,
        queue_us: int,
        exec_us: int,
        rows: int,
        command: bytes,
        size_bytes: int,
    ) -> None: ...
    @property
    def is_empty(self) -> bool: ...
    def flush(self) -> None: ...
