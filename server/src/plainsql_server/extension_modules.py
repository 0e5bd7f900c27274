"""The extension modules, which Cython compiles: the row writer and the fast lane.

    if COMPILED:
        from plainsql_server.engine.encoding.row_writer import RowWriter

An installation built without a C compiler has none of them, and does the same in Python, more slowly. They are used
together or not at all, so that there are only two forms of the service. A module that is there and cannot be imported
is an error, which nothing catches.
"""

from importlib.util import find_spec

MODULES = (
    "engine.encoding.row_writer", "lane.answer", "lane.buffer", "lane.caller", "lane.callers",
    "lane.engine.arrival", "lane.engine.exchange", "lane.engine.libpq", "lane.engine.step", "lane.intake",
    "lane.known_head", "lane.lane", "lane.permit", "lane.plans.frame", "lane.plans.plan", "lane.plans.sql_plan",
    "lane.plans.text_plan", "lane.plans.transaction_plan", "lane.reasons", "lane.report", "lane.request_ids",
    "lane.route", "lane.sql_answer", "lane.track", "lane.transaction_answer", "lane.wire",
)  # fmt: skip

# Whether this installation has them.
COMPILED = all(find_spec(f"plainsql_server.{name}") is not None for name in MODULES)
# The same, as `plainsql-server --version` and the metrics show it.
COMPILED_TEXT = "compiled" if COMPILED else "not compiled"
