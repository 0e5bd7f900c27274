from plainsql_server.engine.encoding.shapes import Encoding
from plainsql_server.lane.plans.frame import Frame, Scalars

MAX_KEY_BYTES: int
MAX_PLANS: int
SHORTEST_TIMEOUT_MS: int

class StepPlan:
    sql: str
    text: bytes
    scalars: Scalars | None

class QueryPlan:
    steps: list[StepPlan]
    frame: Frame
    encoding: Encoding
    database: str | None
    timeout_ms: int | None
    chunk_rows: int
    max_rows: int
    state: int
    state_without_code: int
    may_store_code: bool
    read_only: bool
    is_transaction: bool

class PlanTable:
    key_bytes: int
    def __len__(self) -> int: ...

class QueryPlans:
    framed: PlanTable
    whole: PlanTable
    def __init__(self, scalars: Scalars) -> None: ...
    def of(self, body: bytes) -> QueryPlan | None: ...

def blanked(text: bytes) -> bytes: ...
