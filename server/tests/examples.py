"""How many examples Hypothesis makes: all in `make soak PART=properties`, and a quarter in other runs.

    @settings(max_examples=examples(400))

Each run makes others, so what a quarter overlooks is found by one of the next runs.
"""

import os

_IS_FULL = bool(os.environ.get("PLAINSQL_TEST_FULL"))
_SHARE = 4


def examples(count: int) -> int:
    """So many in full size."""
    return count if _IS_FULL else count // _SHARE
