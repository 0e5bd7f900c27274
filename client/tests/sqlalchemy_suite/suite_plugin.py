"""What SQLAlchemy's own suite needs before it starts: the dialect under test, registered under a name of its own.

The suite cleans up by rolling back, which autocommit refuses after a write: here, and only here, that refusal is
passed over. Its fixtures delete what tests insert, so that nothing depends on the rollback.
"""

import contextlib
from typing import Any

from sqlalchemy.dialects import registry

from plainsql.dbapi import OperationalError
from plainsql.dialect import PlainSQLDialect


class SuiteDialect(PlainSQLDialect):
    """The dialect, whose rollback after committed writes does nothing."""

    supports_statement_cache = True

    def do_rollback(self, dbapi_connection: Any) -> None:
        with contextlib.suppress(OperationalError):
            dbapi_connection.rollback()


registry.register("plainsql.suite", "suite_plugin", "SuiteDialect")
