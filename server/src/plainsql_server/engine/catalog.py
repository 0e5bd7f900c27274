"""The types that customers made, looked up by OID and remembered per database.

Owns the look-up. It uses a short-lived connection of its own, because an unknown type shows only in the
middle of a result, when the statement's connection is busy. Refuses to trust names: everything is
qualified, and it runs as the tenant, so that nothing laid in its way gains anything.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from plainsql_server.engine.types import FIRST_CUSTOMER_OID, SHIPPED_TYPES, EngineType

# An element's array type points back at it; int2vector and its kin do not, and are text.
_LOOK_UP = """
with recursive wanted(oid) as (
    select unnest($1::pg_catalog.oid[])
    union
    select related.oid
    from wanted join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) wanted.oid
    cross join lateral (values (t.typelem), (t.typbasetype)) related(oid)
    where related.oid operator(pg_catalog.<>) 0
)
select t.oid, t.typname, t.typbasetype, t.typdelim,
       case when e.typarray operator(pg_catalog.=) t.oid then e.oid else 0 end
from wanted join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) wanted.oid
left join pg_catalog.pg_type e on e.oid operator(pg_catalog.=) t.typelem
"""

Rows = list[tuple[int, str, int, str, int]]
LookUp = Callable[[str, bytes], Awaitable[list[list[str]]]]


class Catalog:
    """The types of one database: PostgreSQL's own, and those met so far."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._met: dict[int, EngineType] = {}

    def known(self, oids: Iterable[int]) -> list[EngineType] | None:
        """The types, or None where one is unknown and `resolve` must be awaited."""
        types = [SHIPPED_TYPES.get(oid) or self._met.get(oid) for oid in oids]
        return None if None in types else [type_ for type_ in types if type_ is not None]

    async def resolve(self, oids: Iterable[int]) -> list[EngineType]:
        """The types, looked up where needed. One that does not exist any more is text named `unknown`."""
        wanted = list(oids)
        if (known := self.known(wanted)) is not None:
            return known
        rows = await self._look_up(_LOOK_UP, b"{%b}" % b",".join(b"%d" % oid for oid in wanted))
        self._met.update(_types_from_rows([(int(o), n, int(b), d, int(e)) for o, n, b, d, e in rows]))
        return [SHIPPED_TYPES.get(oid) or self._met.get(oid) or EngineType(oid, "unknown") for oid in wanted]

    def forget(self) -> None:
        """Drops what customers may have changed."""
        self._met = {oid: type_ for oid, type_ in self._met.items() if oid < FIRST_CUSTOMER_OID}


def _types_from_rows(rows: Rows) -> dict[int, EngineType]:
    by_oid = {row[0]: row for row in rows}
    built: dict[int, EngineType] = {}
    for oid in by_oid:
        _build(oid, by_oid, built)
    return built


def _build(oid: int, by_oid: Mapping[int, tuple[int, str, int, str, int]], built: dict[int, EngineType]) -> EngineType:
    if (known := SHIPPED_TYPES.get(oid) or built.get(oid)) is not None:
        return known
    _, name, base, delimiter, element = by_oid[oid]
    element_type = _build(element, by_oid, built) if element else None
    type_ = built[oid] = EngineType(
        oid,
        f"{element_type.name}[]" if element_type else name,
        element=element_type,
        base=_build(base, by_oid, built) if base else None,
        delimiter=delimiter,
    )
    return type_
