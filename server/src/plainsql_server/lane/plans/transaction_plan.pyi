from plainsql_server.lane.plans.frame import Frame
from plainsql_server.lane.plans.plan import QueryPlan, QueryPlans

class TransactionFrame(Frame):
    parts: tuple[bytes, ...]

class TransactionPlan(QueryPlan):
    frame: TransactionFrame

class TransactionPlans(QueryPlans):
    def of(self, body: bytes) -> TransactionPlan | None: ...
    def parameters(self, plan: TransactionPlan) -> list[list[bytes | None]]: ...
