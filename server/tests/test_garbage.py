"""Collections leave out what was there at the start."""

import os
import subprocess
import sys

# In a process of its own: nothing that is frozen is ever collected.
_SPARED = """
import gc
from plainsql_server.garbage import spare_requests
before = [[] for _ in range(10_000)]
full = gc.get_threshold()[2]
spare_requests()
assert gc.get_freeze_count() > 10_000
assert len(gc.get_objects()) < 1_000
assert gc.get_threshold()[2] > full
after = []
after.append(after)
del after
assert gc.collect() >= 1
"""


def test_what_is_there_at_the_start_is_not_visited_again() -> None:
    subprocess.run([sys.executable, "-c", _SPARED], check=True, timeout=60)


def test_the_data_plane_spares_its_modules_and_its_loop() -> None:
    made = "import gc, sys; from plainsql_server.assembly import data_application as made; made()"
    check = f"{made}; assert gc.get_freeze_count() > 10_000; assert sys.getswitchinterval() < 0.001"
    environment = {**os.environ, "PLAINSQL_DIRECTORY_DSN": "dbname=unused"}
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60, env=environment)
