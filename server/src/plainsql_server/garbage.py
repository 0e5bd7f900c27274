"""Python's garbage collector, set up so that it does not make requests wait.

    spare_requests()    # once, when everything is imported

A full collection visits every object of the process, and nothing else runs meanwhile. The modules alone are more than
50,000 objects, which takes about 20 ms on one machine. They stay until the process ends, so they need not be visited.
"""

import gc

# How many collections of the middle generation come before a full one; Python's own choice is 10. Old garbage in cycles
# stays until then. The service makes little of it: answers and rows are freed as soon as they were sent.
_BEFORE_FULL = 100


def spare_requests() -> None:
    """Excludes existing objects from later collections, and makes full ones rare."""
    gc.collect()
    gc.freeze()
    first, second, _ = gc.get_threshold()
    gc.set_threshold(first, second, _BEFORE_FULL)
