"""Python's garbage collector, set up so that it does not make requests wait.

    spare_requests()    # once, when everything is imported

A full collection visits every object of the process, and nothing else runs meanwhile. The modules alone are more than
50,000 objects, which takes 30 ms on one machine. They stay until the process ends, so they need not be visited.
"""

import gc

# How many collections of the middle generation come before a full one; Python's own choice is 10. Objects that only a
# full collection would free take some tens of megabytes at most.
_BEFORE_FULL = 100


def spare_requests() -> None:
    """Leaves out all objects that exist now from later collections, and makes full ones rare."""
    gc.collect()
    gc.freeze()
    first, second, _ = gc.get_threshold()
    gc.set_threshold(first, second, _BEFORE_FULL)
