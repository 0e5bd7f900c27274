"""Looks at something again and again beside a test.

with sampling(lambda: seen.append(node.resident_bytes()), every_s=0.003):
    …
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def sampling(look: Callable[[], object], every_s: float) -> Iterator[None]:
    """Calls `look` in a thread of its own, for the length of the block."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every_s):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
