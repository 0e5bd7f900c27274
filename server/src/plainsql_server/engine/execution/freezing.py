"""Freezes an INSERT in a dry run: makes the statement that inserts the same rows later, generated values included.

    freezing = Freezing(insert)
    connection.send_query(QUESTION, 0, freezing.question())    # before the INSERT, in the same transaction
    connection.send_query(insert.with_row)          # its result has one more column
    freezing.take_facts(result)
    freezing.take_rows(result, left_bytes)
    result.frozen = freezing.frozen()               # a FrozenInsert, or a code for why there is none

The question is about the table. It is asked as the tenant, and with every name qualified.
"""

from collections.abc import Sequence

from psycopg.pq.abc import PGresult

from plainsql_server.core.insert_text import InsertText, unquoted
from plainsql_server.core.result import FrozenInsert
from plainsql_server.engine.execution.plan import ResultReference

_TRIGGERS = "triggers"

# The rows of a table can be frozen if they depend on nothing that is read when they are made, and if inserting them
# again makes the same rows of them.
#
# - Inserting into a view, a foreign table, or one with rules can do anything.
# - RETURNING needs the right to read, and rows that a policy hides can't be returned.
# - A trigger that runs before the insert would run again on what it has changed. So the statement is repeated as it is,
#   with the values that were generated for columns that it returns: the trigger gets the same rows as before, unless it
#   changes these values, and then the result differs.
# - A sequence that was created or restarted in this transaction starts again in the next one, which must use it.
# - A function in SQL or PL/pgSQL may read tables. Frozen, its result would no longer depend on them. The functions of
#   aggregates and defaults of domains are not looked at, so those that a customer made are refused. Casts are called
#   without being named, so any cast with such a function counts, and so does one from or to the table's rows.
# - Some of PostgreSQL's own functions read tables, too, such as query_to_xml. Others do something that is rolled back,
#   such as lo_from_bytea, or return what belongs to this transaction, such as its number. Of those that are volatile,
#   the ones that are known to only make up a value are allowed.
# - With some settings, PostgreSQL writes values in a way that loses or changes them. With another, strings in the
#   statement mean something else than what was read.
_ALLOWED = (
    "array_sample,array_shuffle,clock_timestamp,currval,gen_random_uuid,lastval,nextval,pg_sleep,pg_sleep_for,"
    "pg_sleep_until,random,random_normal,setseed,timeofday,uuidv4,uuidv7"
)
_GENERATING = frozenset(_ALLOWED.split(","))
_REFUSED = (
    "database_to_xml,database_to_xml_and_xmlschema,pg_current_snapshot,pg_current_xact_id,"
    "pg_current_xact_id_if_assigned,schema_to_xml,schema_to_xml_and_xmlschema,table_to_xml,"
    "table_to_xml_and_xmlschema,txid_current,txid_current_if_assigned,txid_current_snapshot"
)
_UNREPEATABLE = f"""(p.pronamespace operator(pg_catalog.=) 'pg_catalog'::regnamespace and (
    (p.provolatile operator(pg_catalog.=) 'v'
        and p.proname operator(pg_catalog.<>) all ('{{{_ALLOWED}}}'::pg_catalog.name[]))
    or p.proname operator(pg_catalog.=) any ('{{{_REFUSED}}}'::pg_catalog.name[])))"""
_IS_CODE = """(l.lanname operator(pg_catalog.<>) all ('{c,internal}'::pg_catalog.name[])
    or p.provolatile operator(pg_catalog.=) 'v')"""
# Types that are not built in, casts and operators have this OID or a higher one.
_FIRST_OWN_OID = "16384::pg_catalog.oid"
_FACTS = f"""
select case
    when c.relkind operator(pg_catalog.<>) all ('{{r,p}}'::pg_catalog."char"[]) then 'not_a_table'
    when c.relhasrules then 'rules'
    when pg_catalog.row_security_active(c.oid) then 'row_security'
    when not (pg_catalog.has_table_privilege(c.oid, 'SELECT') and pg_catalog.has_table_privilege(c.oid, 'INSERT'))
        then 'privileges'
    when exists (
        select from pg_catalog.pg_depend d
        join pg_catalog.pg_class s on s.oid operator(pg_catalog.=) d.objid
        where d.refclassid operator(pg_catalog.=) 'pg_catalog.pg_class'::regclass
            and d.refobjid operator(pg_catalog.=) c.oid
            and d.classid operator(pg_catalog.=) 'pg_catalog.pg_class'::regclass
            and s.relkind operator(pg_catalog.=) 'S' and pg_catalog.age(s.xmin) operator(pg_catalog.<=) 0
    ) or exists (
        select from pg_catalog.pg_attrdef a
        join pg_catalog.pg_depend d on d.classid operator(pg_catalog.=) 'pg_catalog.pg_attrdef'::regclass
            and d.objid operator(pg_catalog.=) a.oid
            and d.refclassid operator(pg_catalog.=) 'pg_catalog.pg_class'::regclass
        join pg_catalog.pg_class s on s.oid operator(pg_catalog.=) d.refobjid
        where a.adrelid operator(pg_catalog.=) c.oid
            and s.relkind operator(pg_catalog.=) 'S' and pg_catalog.age(s.xmin) operator(pg_catalog.<=) 0
    ) or ('nextval' operator(pg_catalog.=) any ($2::pg_catalog.text[]) and exists (
        select from pg_catalog.pg_class s
        where s.relkind operator(pg_catalog.=) 'S' and pg_catalog.age(s.xmin) operator(pg_catalog.<=) 0
    )) then 'new_sequence'
    when exists (
        select from pg_catalog.pg_proc p
        join pg_catalog.pg_language l on l.oid operator(pg_catalog.=) p.prolang
        where p.proname operator(pg_catalog.=) any ($2::pg_catalog.text[]::pg_catalog.name[])
            and p.pronamespace operator(pg_catalog.<>) 'pg_catalog'::regnamespace
            and (p.prokind operator(pg_catalog.=) 'a'
                or l.lanname operator(pg_catalog.<>) all ('{{c,internal}}'::pg_catalog.name[]))
    ) or exists (
        select from pg_catalog.pg_attrdef a
        join pg_catalog.pg_depend d on d.classid operator(pg_catalog.=) 'pg_catalog.pg_attrdef'::regclass
            and d.objid operator(pg_catalog.=) a.oid
            and d.refclassid operator(pg_catalog.=) 'pg_catalog.pg_proc'::regclass
        join pg_catalog.pg_proc p on p.oid operator(pg_catalog.=) d.refobjid
        join pg_catalog.pg_language l on l.oid operator(pg_catalog.=) p.prolang
        where a.adrelid operator(pg_catalog.=) c.oid
            and l.lanname operator(pg_catalog.<>) all ('{{c,internal}}'::pg_catalog.name[])
    ) or exists (
        select from pg_catalog.pg_attrdef a
        join pg_catalog.pg_depend d on d.classid operator(pg_catalog.=) 'pg_catalog.pg_attrdef'::regclass
            and d.objid operator(pg_catalog.=) a.oid
            and d.refclassid operator(pg_catalog.=) 'pg_catalog.pg_operator'::regclass
        where a.adrelid operator(pg_catalog.=) c.oid and d.refobjid operator(pg_catalog.>=) {_FIRST_OWN_OID}
    ) or exists (
        select from pg_catalog.pg_operator o
        join pg_catalog.pg_proc p on p.oid operator(pg_catalog.=) o.oprcode
        join pg_catalog.pg_language l on l.oid operator(pg_catalog.=) p.prolang
        where o.oprname operator(pg_catalog.=) any ($3::pg_catalog.text[]::pg_catalog.name[])
            and o.oid operator(pg_catalog.>=) {_FIRST_OWN_OID} and {_IS_CODE}
    ) or exists (
        select from pg_catalog.pg_cast k
        join pg_catalog.pg_proc p on p.oid operator(pg_catalog.=) k.castfunc
        join pg_catalog.pg_language l on l.oid operator(pg_catalog.=) p.prolang
        where k.oid operator(pg_catalog.>=) {_FIRST_OWN_OID} and {_IS_CODE}
    ) or exists (
        select from pg_catalog.pg_cast k
        join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) c.reltype
        where k.oid operator(pg_catalog.>=) {_FIRST_OWN_OID}
            and (k.castsource operator(pg_catalog.=) any (array[t.oid, t.typarray])
                or k.casttarget operator(pg_catalog.=) any (array[t.oid, t.typarray]))
    ) or exists (
        select from pg_catalog.pg_attribute a
        join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) a.atttypid
        where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0 and not a.attisdropped
            and t.typtype operator(pg_catalog.=) 'd' and t.typdefaultbin is not null
    ) then 'calls_code'
    when exists (
        select from pg_catalog.pg_proc p
        where p.proname operator(pg_catalog.=) any ($2::pg_catalog.text[]::pg_catalog.name[]) and {_UNREPEATABLE}
    ) or exists (
        select from pg_catalog.pg_attrdef a
        cross join lateral pg_catalog.regexp_matches(
            pg_catalog.pg_get_expr(a.adbin, a.adrelid), '([a-z0-9_]+)\\(', 'g') called(names)
        join pg_catalog.pg_proc p on p.proname operator(pg_catalog.=) called.names[1]::pg_catalog.name
        where a.adrelid operator(pg_catalog.=) c.oid and {_UNREPEATABLE}
    ) then 'unrepeatable'
    when pg_catalog.current_setting('DateStyle') operator(pg_catalog.!~) '^ISO'
        or pg_catalog.current_setting('IntervalStyle') operator(pg_catalog.=) 'sql_standard'
        or pg_catalog.current_setting('extra_float_digits')::pg_catalog.int4 operator(pg_catalog.<) 1
        or pg_catalog.current_setting('array_nulls') operator(pg_catalog.<>) 'on'
        or pg_catalog.current_setting('standard_conforming_strings') operator(pg_catalog.<>) 'on' then 'settings'
    when exists (
        select from pg_catalog.pg_trigger t
        where t.tgrelid operator(pg_catalog.=) c.oid and not t.tgisinternal and t.tgenabled operator(pg_catalog.<>) 'D'
            and (t.tgtype operator(pg_catalog.&) 7::pg_catalog.int2) operator(pg_catalog.=) 7
    ) or (c.relkind operator(pg_catalog.=) 'p' and exists (
        select from pg_catalog.pg_partition_tree(c.oid) p
        join pg_catalog.pg_trigger t on t.tgrelid operator(pg_catalog.=) p.relid
        where not t.tgisinternal and t.tgenabled operator(pg_catalog.<>) 'D'
            and (t.tgtype operator(pg_catalog.&) 7::pg_catalog.int2) operator(pg_catalog.=) 7
    )) then 'triggers'
    end,
    case when c.relpersistence operator(pg_catalog.=) 't' then 'pg_temp'
        else pg_catalog.quote_ident(n.nspname) end,
    pg_catalog.quote_ident(c.relname),
    column_.name,
    column_.is_computed,
    exists (
        select from pg_catalog.pg_trigger t
        where (t.tgrelid operator(pg_catalog.=) c.oid or (c.relkind operator(pg_catalog.=) 'p' and t.tgrelid
                operator(pg_catalog.=) any (array(select p.relid from pg_catalog.pg_partition_tree(c.oid) p))))
            and not t.tgisinternal and t.tgenabled operator(pg_catalog.<>) 'D'
            and (t.tgtype operator(pg_catalog.&) 4::pg_catalog.int2) operator(pg_catalog.=) 4
    ),
    column_.is_generated
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) c.relnamespace
left join lateral (
    select pg_catalog.quote_ident(a.attname) as name, a.attnum,
        a.attgenerated operator(pg_catalog.<>) '' as is_computed,
        (a.atthasdef and a.attgenerated operator(pg_catalog.=) '') or a.attidentity operator(pg_catalog.<>) ''
            as is_generated
    from pg_catalog.pg_attribute a
    where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0 and not a.attisdropped
) column_ on true
where c.oid operator(pg_catalog.=) pg_catalog.to_regclass($1)
order by column_.attnum
"""
# Planning takes ten times as long as running it, so it is prepared. PostgreSQL only keeps the plan if it expects none
# for the very parameters to be cheaper. So it must not see them when it plans.
QUESTION = (
    _FACTS.replace("::reg", "::pg_catalog.reg")
    .replace("($1)", "((select $1::pg_catalog.text)::pg_catalog.text)")
    .replace("$2::pg_catalog.text[]", "((select $2::pg_catalog.text[])::pg_catalog.text[])")
    .replace("$3::pg_catalog.text[]", "((select $3::pg_catalog.text[])::pg_catalog.text[])")
)


class Freezing:
    """An INSERT that is being frozen."""

    def __init__(self, insert: InsertText) -> None:
        self.insert = insert
        self._reason: str | None = "not_a_table"
        self._table = ""
        self._columns: list[str] = []
        self._inserted: list[str] = []
        self._rows: list[str] = []
        self._kept_bytes = 0
        self._mergeable = False
        # If it must be repeated as it is: the columns whose values are added.
        self._added: list[str] = []

    def question(self) -> list[bytes | None]:
        """The parameters of `QUESTION`, which asks what must be known about the table."""
        insert = self.insert
        return [insert.table.encode(), _array(insert.functions), _array(insert.operators)]

    def take_facts(self, result: PGresult) -> None:
        """Takes the answer: one row per column, or none if there is no such table."""
        rows = [[result.get_value(row, at) for at in range(7)] for row in range(result.ntuples)]
        if rows:
            reason, schema, table, _, _, has_triggers, _ = rows[0]
            self._mergeable = has_triggers == b"f"
            columns = [(name.decode(), computed == b"t") for _, _, _, name, computed, _, _ in rows if name is not None]
            self._columns = [name for name, _ in columns]
            self._inserted = [name for name, is_computed in columns if not is_computed]
            self._table = f"{(schema or b'').decode()}.{(table or b'').decode()}"
            self._reason = None if reason is None else reason.decode()
            if self._reason is None and not self._inserted:
                self._reason = "no_columns"
            if self._reason == _TRIGGERS:
                self._added = self._seen([row[3].decode() for row in rows if row[3] is not None and row[6] == b"t"])
                self._reason = None if self._added else _TRIGGERS

    def _seen(self, generated: list[str]) -> list[str]:
        """The columns whose values were generated and returned. The caller knows no others."""
        values = self.insert.values
        # Repeated, a call would generate another value.
        if values is None or not _GENERATING.isdisjoint(self.insert.functions):
            return []
        names = {column: unquoted(column) for column in generated}
        return [
            column
            for column, name in names.items()
            if name not in values.columns and (values.returned is None or name in values.returned)
        ]

    def take_rows(self, result: PGresult, left_bytes: int) -> int:
        """Takes the new rows, which are in the last column. Returns how many bytes more are kept.

        If there are more than `left_bytes`, nothing is kept, and what was kept is given back: the result is negative.
        """
        if self._reason is not None:
            return 0
        texts = [result.get_value(row, result.nfields - 1) or b"" for row in range(result.ntuples)]
        size_bytes = sum(map(len, texts))
        if size_bytes > left_bytes:
            kept_bytes, self._kept_bytes = self._kept_bytes, 0
            self._rows, self._reason = [], "too_large"
            return -kept_bytes
        self._kept_bytes += size_bytes
        self._rows += [text.decode() for text in texts]
        return size_bytes

    def frozen(self, params: Sequence[bytes | ResultReference] = ()) -> FrozenInsert | str:
        """The frozen statement, or a code for why there is none. `params` are those of the INSERT."""
        if self._reason is not None:
            return self._reason
        if not self._added:
            sql = self.insert.frozen(self._table, self._columns, self._inserted)
            return FrozenInsert(sql, self._rows, self._mergeable, self._kept_bytes)
        before = [param for param in params if isinstance(param, bytes)]
        values = self.insert.values
        assert values is not None
        # A trigger can leave out rows. A reference means something else in another request.
        if len(self._rows) != values.row_count or len(before) != len(params):
            return _TRIGGERS
        repeated = self.insert.repeated(self._table, self._added)
        return "too_large" if repeated is None else FrozenInsert(repeated, self._rows, False, self._kept_bytes, before)


def _array(names: Sequence[str]) -> bytes:
    """Names as PostgreSQL's text for an array."""
    quoted = ['"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in names]
    return f"{{{','.join(quoted)}}}".encode()
