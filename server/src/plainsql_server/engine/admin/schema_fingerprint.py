"""A fingerprint of everything that is defined in a database, to notice that a definition changed.

Owns which catalogs count. What PostgreSQL notes by itself (statistics, sizes, freezing, where a table is stored) does
not, nor do temporary objects. Refuses to say what changed.
"""

# Of a catalog, the places of its rows: a row that is changed gets another one, and while the earlier of two moments is
# held, none is used again. `kept` are all relations, `spaces` all schemas, that are not temporary.
_WHERE = {
    "pg_attribute": "attrelid IN (SELECT oid FROM kept)",
    "pg_attrdef": "adrelid IN (SELECT oid FROM kept)",
    "pg_index": "indrelid IN (SELECT oid FROM kept)",
    "pg_trigger": "tgrelid IN (SELECT oid FROM kept)",
    "pg_rewrite": "ev_class IN (SELECT oid FROM kept)",
    "pg_policy": "polrelid IN (SELECT oid FROM kept)",
    "pg_inherits": "inhrelid IN (SELECT oid FROM kept)",
    "pg_statistic_ext": "stxrelid IN (SELECT oid FROM kept)",
    "pg_sequence": "seqrelid IN (SELECT oid FROM kept)",
    "pg_partitioned_table": "partrelid IN (SELECT oid FROM kept)",
    "pg_constraint": "connamespace IN (SELECT oid FROM spaces)",
    "pg_type": "typnamespace IN (SELECT oid FROM spaces)",
    "pg_proc": "pronamespace IN (SELECT oid FROM spaces)",
    "pg_operator": "oprnamespace IN (SELECT oid FROM spaces)",
    "pg_namespace": "oid IN (SELECT oid FROM spaces)",
    # Which sequence belongs to which column is said nowhere else.
    "pg_depend": (
        "classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass AND objid IN (SELECT oid FROM kept)"
    ),
}
_ALL_OF = (
    "pg_aggregate", "pg_amop", "pg_amproc", "pg_cast", "pg_collation", "pg_conversion", "pg_default_acl",
    "pg_description", "pg_enum", "pg_event_trigger", "pg_extension", "pg_language", "pg_opclass", "pg_opfamily",
    "pg_publication", "pg_publication_rel", "pg_range", "pg_seclabel", "pg_ts_config", "pg_ts_config_map",
    "pg_ts_dict", "pg_ts_parser", "pg_ts_template",
)  # fmt: skip
# Emptying a table or refreshing a view changes its row here, and is no change of a definition.
_RELATIONS = """
    SELECT md5(string_agg(ROW(oid, relname, relnamespace, reltype, reloftype, relowner, relam, reltablespace,
        relpersistence, relkind, relnatts, relchecks, relrowsecurity, relforcerowsecurity, relispopulated,
        relreplident, relispartition, relacl, reloptions, relpartbound)::text, ',' ORDER BY oid))
    FROM pg_class WHERE relpersistence <> 't' AND relnamespace <> 'pg_toast'::regnamespace
"""


def _query() -> str:
    counted = "SELECT '{0}', count(*) || ' ' || coalesce(sum(hashtidextended(ctid, 0)), 0) FROM {0} WHERE {1}"
    parts = [counted.format(*each) for each in [*_WHERE.items(), *((name, "true") for name in _ALL_OF)]]
    return f"""
        WITH kept AS (SELECT oid FROM pg_class WHERE relpersistence <> 't'),
             spaces AS (SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'),
             prints (catalog, print) AS ({" UNION ALL ".join(parts)} UNION ALL SELECT 'pg_class', ({_RELATIONS}))
        SELECT md5(string_agg(catalog || ' ' || print, ',' ORDER BY catalog)) FROM prints
    """


FINGERPRINT = _query()
