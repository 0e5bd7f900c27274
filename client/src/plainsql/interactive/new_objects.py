"""Objects that a transaction makes, such as tables and types, and the OIDs by which the program knows them.

Such an object has another OID in each rehearsal, and again another one after the commit. The program keeps the OID that
it saw first. In a later read of the catalogue, this OID stands for the object of the same name, where it was read:
`Translation` looks up the names after the same write as before, so a later rename changes nothing. It replaces the
OIDs in the read's parameters, and those in its result.

    translation = Translation(read)
    translation.look_up(sent, write.made)     after each write that made objects which the program knows
    translation.finish(sent)                  at last: lists the new objects, and adds the read itself
    translation.take(answer, made)            notes what the read found in `made`
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plainsql.errors import TransactionError
from plainsql.interactive.texts import mentions_oids

if TYPE_CHECKING:
    from plainsql.interactive.unit import Entry, Sent

# The objects that this transaction has made, and some that it has changed, by kind and name. All but schemas depend on
# something.
_MADE = """
select i.type || ' ' || i.identity as name, pg_catalog.min(d.objid) as oid
from (
    select classid, objid from pg_catalog.pg_depend where pg_catalog.age(xmin) <= 0
    union select 'pg_catalog.pg_namespace'::pg_catalog.regclass, oid from pg_catalog.pg_namespace
    where pg_catalog.age(xmin) <= 0
) d, pg_catalog.pg_identify_object(d.classid, d.objid, 0) i
where i.identity is not null group by 1
"""
# Both have one row, whatever the limit on rows is.
_LISTING = f"select pg_catalog.array_agg(m.name), pg_catalog.array_agg(m.oid) from ({_MADE}) m"
_LOOK_UP = f"""
select pg_catalog.array_agg(m.oid order by w.place)
from pg_catalog.unnest($1::pg_catalog.text[]) with ordinality as w (name, place)
left join ({_MADE}) m on m.name = w.name
"""
_EACH = "select * from pg_catalog.unnest($1::pg_catalog.oid[])"
_OID_TYPES = ("oid", "oid[]", "_oid")
_NUMBER = re.compile(r"(?<![\w.])\d{5,10}(?![\w.])", re.ASCII)

_NOT_FINAL = (
    "This statement uses the OID of an object that was made in the same transaction, so the OID isn't final. Commit "
    "first, or use autocommit."
)
_NOT_A_PARAMETER = (
    "This statement has the OID of an object that was made in the same transaction in its text. Pass the OID as a "
    "parameter, or commit first."
)
_GONE = (
    "This statement uses the OID of an object that was made in the same transaction, and the object can't be found by "
    "its name. Commit first, or use autocommit."
)


class Translation:
    """A read of the catalogue after writes, whose OIDs are translated."""

    def __init__(self, read: "Entry") -> None:
        self._read = read
        self._used = set(_integers(read.params))
        # For each lookup: its index, the OIDs that the program knows, and which of them the read uses.
        self._lookups: list[tuple[int, list[int], list[int]]] = []
        self._references: dict[int, dict[str, str]] = {}

    def look_up(self, sent: "Sent", made: Mapping[str, int]) -> None:
        """Looks up objects by the names that they have at this point."""
        index, known = len(sent.statements), list(made.values())
        used = [oid for oid in known if oid in self._used]
        sent.add({"sql": _LOOK_UP, "params": [list(made)]}, [])
        self._lookups.append((index, known, used))
        if used:
            sent.add({"sql": _EACH, "params": [{"$ref": f"{index}.rows.0.0"}], "rows": False}, [])
            for oid in used:
                self._references[oid] = {"$ref": f"{index + 1}.rows.{known.index(oid)}.0"}

    def finish(self, sent: "Sent") -> None:
        """Lists the objects that there are now, and adds the read with its translated parameters."""
        params = [self._param(sent, param) for param in self._read.params]
        sent.add({"sql": _LISTING}, [])
        statement = self._read.statement()
        sent.add({**statement, "params": params} if params else statement, [self._read])

    def take(self, answer: Mapping[str, Any], made: dict[str, int]) -> None:
        """Replaces the OIDs in the read's result by those that the program knows; new ones are noted in `made`.

        Raises TransactionError if an object that the read uses was not found.
        """
        *results, listing, result = answer["results"]
        known: dict[int, int] = {}
        for index, before, used in self._lookups:
            now = results[index]["rows"][0][0]
            if any(here is None and oid in used for oid, here in zip(before, now, strict=True)):
                raise not_final(_GONE)
            known |= {here: oid for oid, here in zip(before, now, strict=True) if here is not None}
        names, oids = listing["rows"][0]
        new = {oid: name for name, oid in zip(names or (), oids or (), strict=True) if oid not in known}
        for column in [index for index, name in enumerate(result["types"]) if name in _OID_TYPES]:
            for row in result["rows"]:
                made |= {new[oid]: oid for oid in _integers([row[column]]) if oid in new}
                row[column] = _translated(row[column], known)

    def _param(self, sent: "Sent", param: Any) -> Any:
        if not isinstance(param, list):
            return self._references.get(_number(param), param)
        if self._references.keys().isdisjoint(_integers(param)):
            return param
        # A reference can't be in a list, so the list is made by a statement of its own.
        marks = ", ".join([f"${number}::pg_catalog.oid" for number in range(1, len(param) + 1)])
        params = [self._references.get(_number(each), each) for each in param]
        sent.add({"sql": f"select (array[{marks}])::pg_catalog.text", "params": params, "rows": False}, [])
        return {"$ref": f"{len(sent.statements) - 1}.rows.0.0"}


def check_oids(entry: "Entry", known: Iterable[int]) -> None:
    """Raises TransactionError if a statement uses an OID that isn't final in a way that can't be translated."""
    if not mentions_oids(entry.sql):
        # A number like any other.
        return
    oids = set(known)
    if not oids.isdisjoint(int(number) for number in _NUMBER.findall(entry.sql)):
        raise not_final(_NOT_A_PARAMETER)
    if not entry.reads_catalogue and not oids.isdisjoint(_integers(entry.params)):
        raise not_final(_NOT_FINAL)


def not_final(message: str) -> TransactionError:
    return TransactionError("feature_not_supported", "0A000", message)


def _number(value: Any) -> int:
    """A parameter as a number; -1 if it isn't one."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) else -1


def _integers(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, list):
            yield from _integers(value)
        else:
            yield _number(value)


def _translated(value: Any, known: Mapping[int, int]) -> Any:
    if isinstance(value, list):
        return [_translated(each, known) for each in value]
    return known.get(value, value) if isinstance(value, int) else value
