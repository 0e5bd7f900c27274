"""What the dialect can do, as SQLAlchemy's suite asks for it: what PostgreSQL can, but for what needs a session.

SUPPORTED opens what the suite takes for closed. CLOSED says why something is not tested; the suite's own defaults hold
for the rest, and docs/client.md lists what they skip.
"""

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

SUPPORTED = """
array_type check_constraint_reflection column_collation_reflection comment_reflection comment_reflection_full_unicode
computed_columns_default_persisted computed_columns_reflect_persisted computed_columns_stored
constraint_comment_reflection create_or_replace_view create_table_as cross_schema_fk_reflection ctes
ctes_with_update_delete ctes_with_values date_historic datetime_historic datetime_interval datetime_literals
datetime_timezone datetime_timezone_historic deferrable_fks delete_from expression_server_defaults fetch_expression
fetch_first fetch_no_order_by fetch_offset_with_options fetch_ties fk_constraint_option_reflection_ondelete_noaction
fk_constraint_option_reflection_ondelete_restrict fk_constraint_option_reflection_onupdate_restrict
float_or_double_precision_behaves_generically foreign_key_constraint_name_reflection
foreign_key_constraint_option_reflection_ondelete foreign_key_constraint_option_reflection_onupdate identity_columns
identity_columns_standard index_ddl_if_exists index_reflects_included_columns indexes_check_column_order
indexes_with_expressions infinity_floats inline_check_constraint_reflection isolation_level json_type
legacy_unconditional_json_extract materialized_views percent_schema_names precision_numerics_many_significant_digits
precision_numerics_retains_significant_digits reflect_indexes_with_expressions reflect_table_options
reflect_tables_no_columns reflects_pk_names regexp_match regexp_replace repeated_column_foreign_keys
schema_create_delete server_defaults skip_autocommit_rollback supports_bitwise_and supports_bitwise_not
supports_bitwise_or supports_bitwise_shift supports_bitwise_xor supports_distinct_on table_ddl_if_exists
table_value_constructor time_timezone timestamp_microseconds tuple_in unicode_ddl unique_constraints_reflect_as_index
update_from uuid_data_type views window_functions window_range window_range_non_numeric window_range_numeric
""".split()  # noqa: SIM905  # a table

_NO_SESSION = "temporary tables and views live in a session, and the service has none"
CLOSED = {
    "temp_table_reflection": _NO_SESSION,
    "temp_table_names": _NO_SESSION,
    "has_temp_table": _NO_SESSION,
    "temporary_views": _NO_SESSION,
    "create_temp_table_as": _NO_SESSION,
    "temp_table_reflect_indexes": _NO_SESSION,
    "temp_table_comment_reflection": _NO_SESSION,
    "default_schema_name_switch": "a search path that stays set lives in a session, too",
}


_exclusions: Any = exclusions


def _open() -> property:
    return property(lambda _: _exclusions.open())


def _closed(reason: str) -> property:
    return property(lambda _: _exclusions.skip_if(_exclusions.BooleanPredicate(True, reason), reason))


class Requirements(SuiteRequirements):
    """The suite's requirements, by the two tables and what depends."""

    @property
    def autocommit(self) -> Any:
        """Whether autocommit can be switched on and off again, which needs an address that does not choose it."""
        return _exclusions.skip_if(lambda config: config.db.url.query.get("autocommit") == "true")

    @property
    def computed_columns(self) -> Any:
        """SQLAlchemy warns that PostgreSQL before 18 stores what does not say whether it is stored."""
        return _exclusions.warns_if("postgresql < 18", "Computed column", assert_=False)

    def get_order_by_collation(self, config: Any) -> str:  # noqa: ARG002  # SQLAlchemy's signature
        return "POSIX"


for _name in SUPPORTED:
    setattr(Requirements, _name, _open())
for _name, _reason in CLOSED.items():
    setattr(Requirements, _name, _closed(_reason))
