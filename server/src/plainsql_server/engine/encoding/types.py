"""PostgreSQL's types, as far as encoding needs them: OID, name, element and base type.

Built-in types come from a table in memory. Types that a tenant created are looked up; see `catalog.py`.
"""

from dataclasses import dataclass

from psycopg import adapters

# OIDs below this number are PostgreSQL's own: the same in every database and never assigned to another type.
FIRST_CUSTOMER_OID = 16384


@dataclass(frozen=True, slots=True)
class EngineType:
    """A type. `element` is set for arrays, `base` for domains."""

    oid: int
    name: str
    element: "EngineType | None" = None
    base: "EngineType | None" = None
    delimiter: str = ","

    def resolved(self) -> "EngineType":
        """The type itself, or for a domain its innermost base type."""
        return self if self.base is None else self.base.resolved()


def _shipped_types() -> dict[int, EngineType]:
    types: dict[int, EngineType] = {}
    for info in adapters.types:
        name = info.name.strip('"')
        scalar = types[info.oid] = EngineType(info.oid, name)
        types[info.array_oid] = EngineType(info.array_oid, f"{name}[]", element=scalar, delimiter=info.delimiter)
    return types


SHIPPED_TYPES = _shipped_types()
