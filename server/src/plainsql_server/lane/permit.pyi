from plainsql_server.core.principal import Principal
from plainsql_server.limits.permits import Permits

class LanePermit:
    left: int
    wait_s: float
    @property
    def lines(self) -> bytes: ...

def permit_of(permits: Permits, principal: Principal, limit: int) -> LanePermit | None: ...
