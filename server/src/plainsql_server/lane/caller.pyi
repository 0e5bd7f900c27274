from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.databases import Place
from plainsql_server.engine.pool.pool import Pool

def caller_of(principal: Principal, place: Place, pool: Pool) -> object: ...
