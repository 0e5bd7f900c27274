"""A fingerprint of all definitions in a database, to detect that one has changed (but not which).

What PostgreSQL maintains on its own (statistics, sizes, freezing, storage) does not count, nor do temporary objects.
"""

# The fingerprint of a catalog is made from the ctids of its rows: an updated row gets a new ctid, and while the earlier
# of two snapshots is held, no ctid is reused. `kept` are all relations, and `spaces` all schemas, that are not
# temporary.
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
    # The only catalog that says which sequence a column owns.
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
# Selected columns only: TRUNCATE and REFRESH MATERIALIZED VIEW update a relation's row here, but change no definition.
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
