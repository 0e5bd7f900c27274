from collections.abc import Mapping

from plainsql_server.lane.plans.frame import Scalars
from plainsql_server.lane.plans.plan import QueryPlans

class SqlPlans(QueryPlans):
    def __init__(self, scalars: Scalars) -> None: ...
    def for_headers(self, headers: Mapping[bytes, bytes]) -> SqlPlans: ...
