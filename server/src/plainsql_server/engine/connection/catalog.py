"""The types that tenants created, looked up in pg_type by OID and cached per database.

A lookup opens a separate, short-lived connection: a type turns out to be unknown in the middle of a result, while the
statement's own connection is busy. Every name in the query is schema-qualified and the query runs as the tenant, so an
object that a tenant planted in the search path gains no privileges.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

from psycopg.pq.abc import PGresult

from plainsql_server.core.clock import Deadline
from plainsql_server.engine.encoding.shapes import (
    Description,
    Encoding,
    Origins,
    Rendering,
    describe,
    origins_of,
    rendering_of,
)
from plainsql_server.engine.encoding.types import FIRST_CUSTOMER_OID, SHIPPED_TYPES, EngineType

# Domains over arrays of domains over arrays … can nest without limit. Below this depth, values are encoded as text.
_MAX_DEPTH = 16
# An array type is the `typarray` of its element type. int2vector and similar types are not, and are encoded as text.
_LOOK_UP = f"""
with recursive wanted(oid, depth) as (
    select pg_catalog.unnest($1::pg_catalog.oid[]), 1
    union
    select related.oid, wanted.depth operator(pg_catalog.+) 1
    from wanted join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) wanted.oid
    cross join lateral (values (t.typelem), (t.typbasetype)) related(oid)
    where related.oid operator(pg_catalog.<>) 0 and wanted.depth operator(pg_catalog.<) {_MAX_DEPTH}
)
select distinct t.oid, t.typname, t.typbasetype, t.typdelim,
       case when e.typarray operator(pg_catalog.=) t.oid then e.oid else 0 end
from wanted join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) wanted.oid
left join pg_catalog.pg_type e on e.oid operator(pg_catalog.=) t.typelem
"""

# An application has one rendering, of some kilobytes, for each distinct result description. But a tenant can select
# more than a thousand columns at once, with names of 63 characters each.
_MAX_RENDERED_COLUMNS = 10_000

Rows = list[tuple[int, str, int, str, int]]
LookUp = Callable[[str, bytes, Deadline], Awaitable[list[list[str]]]]


class Catalog:
    """The types of one database: PostgreSQL's own and those looked up so far. Also caches the renderings built on them.

    `generation` changes whenever `forget` is called, and invalidates renderings that are cached elsewhere.
    """

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._met: dict[int, EngineType] = {}
        self._renderings: dict[tuple[Description, Encoding, Origins], Rendering] = {}
        self._rendered_columns = 0
        self.generation = 0

    async def types(self, oids: Sequence[int], deadline: Deadline) -> list[EngineType]:
        """Returns the types, looking up those not cached. A type that no longer exists is text named `unknown`.

        Raises EngineError if the server is unavailable, or does not answer before the deadline.
        """
        types = [SHIPPED_TYPES.get(oid) or self._met.get(oid) for oid in oids]
        if None in types:
            rows = await self._look_up(_LOOK_UP, b"{%b}" % b",".join(b"%d" % oid for oid in oids), deadline)
            self._met.update(_types_from_rows([(int(o), n, int(b), d, int(e)) for o, n, b, d, e in rows]))
        return [SHIPPED_TYPES.get(oid) or self._met.get(oid) or EngineType(oid, "unknown") for oid in oids]

    async def rendering(
        self, result: PGresult, encoding: Encoding, deadline: Deadline, *, hidden: int = 0
    ) -> Rendering:
        """How to encode this result, but for `hidden` columns at its end.

        Cached by result description, because applications repeat their statements. Raises like `types`.
        """
        known = self.known_rendering(result, encoding, hidden)
        if known is None:
            description = describe(result, hidden)
            types = await self.types([oid for _, oid in description], deadline)
            known = self._remember(description, types, encoding, origins_of(result, encoding, hidden))
        return known

    def known_rendering(self, result: PGresult, encoding: Encoding, hidden: int = 0) -> Rendering | None:
        """How to encode this result, if no type must be looked up for it."""
        description, origins = describe(result, hidden), origins_of(result, encoding, hidden)
        known = self._renderings.get((description, encoding, origins))
        if known is None:
            types = [SHIPPED_TYPES.get(oid) or self._met.get(oid) for _, oid in description]
            if None not in types:
                known = self._remember(description, cast("list[EngineType]", types), encoding, origins)
        return known

    def _remember(
        self, description: Description, types: Sequence[EngineType], encoding: Encoding, origins: Origins
    ) -> Rendering:
        if self._rendered_columns > _MAX_RENDERED_COLUMNS:
            self._forget_renderings()
        rendering = rendering_of(description, types, encoding, origins)
        self._renderings[description, encoding, origins] = rendering
        self._rendered_columns += len(description)
        return rendering

    def forget(self) -> None:
        """Drops everything that DDL may have changed: the tenant's types and all renderings."""
        self.generation += 1
        self._met = {oid: type_ for oid, type_ in self._met.items() if oid < FIRST_CUSTOMER_OID}
        self._forget_renderings()

    def _forget_renderings(self) -> None:
        self._renderings.clear()
        self._rendered_columns = 0


def _types_from_rows(rows: Rows) -> dict[int, EngineType]:
    by_oid = {row[0]: row for row in rows}
    built: dict[int, EngineType] = {}
    for oid in by_oid:
        _build(oid, by_oid, built)
    return built


def _build(oid: int, by_oid: Mapping[int, tuple[int, str, int, str, int]], built: dict[int, EngineType]) -> EngineType:
    if (known := SHIPPED_TYPES.get(oid) or built.get(oid)) is not None:
        return known
    if oid not in by_oid:
        return EngineType(oid, "unknown")
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
