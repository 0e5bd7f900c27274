"""Which files a run with `-m` has to import: importing all of them takes longer than many a run.

may_have("timing", path.read_text())    # False if no test of the file can be selected
"""

import re

# Only expressions that begin with one marker, and that nothing but tests with this marker can satisfy.
_ONE_MARKER = re.compile(r"(?P<marker>unit|timing|chaos)(?: and .*)?")


def may_have(expression: str, text: str) -> bool:
    """Whether a file with this text may have a test that pytest's `-m` selects with this expression."""
    wanted = _ONE_MARKER.fullmatch(expression)
    return wanted is None or " or " in expression.partition("(")[0] or f"mark.{wanted['marker']}" in text
