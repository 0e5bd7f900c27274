"""The arithmetic of a cell's size, and where the memory that it is computed from is read."""

import os
from pathlib import Path

import pytest

from plainsql_server.operations.files.cell import CellConfig
from plainsql_server.operations.files.machine_memory import machine_memory_bytes
from plainsql_server.operations.files.sizing import GIB, locks_per_transaction, max_connections, tenant_connections

pytestmark = pytest.mark.unit

PHYSICAL_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
UNLIMITED_V1 = "9223372036854771712"


@pytest.mark.parametrize(
    ("memory_gib", "tenants"),
    [(0.5, 200), (3.125, 200), (4, 256), (8, 512), (24, 1_536), (31.25, 2_000), (256, 2_000)],
)
def test_tenants_connections_take_a_quarter_of_the_memory(memory_gib: float, tenants: int) -> None:
    memory_bytes = int(memory_gib * GIB)
    assert tenant_connections(memory_bytes) == tenants
    assert max_connections(memory_bytes) == tenants + 60


def test_a_cell_of_unknown_memory_has_the_fewest_connections() -> None:
    assert tenant_connections(None) == 200


@pytest.mark.parametrize("memory_gib", [1, 4, 8, 24, 64])
def test_the_lock_table_has_the_same_size_on_every_cell(memory_gib: int) -> None:
    settings = CellConfig("admin", "/run", memory_bytes=memory_gib * GIB).settings()
    holders = int(settings["max_connections"]) + int(settings["max_prepared_transactions"])
    locks, predicate_locks = (int(settings[f"max_{kind}_per_transaction"]) for kind in ("locks", "pred_locks"))
    assert 133_000 < locks * holders < 137_000
    assert predicate_locks == locks // 2


def test_a_transaction_has_at_least_as_many_locks_as_postgresql_gives_it() -> None:
    assert locks_per_transaction(1_596) == 81
    assert locks_per_transaction(10_000) == 64


def test_the_file_says_what_its_sizes_were_computed_from() -> None:
    text = CellConfig("admin", "/run", memory_bytes=8 * GIB + 1).postgresql_conf()
    assert "\n# Connections and locks are for 8 GiB of memory: 512 connections for customers.\n" in text
    assert "\nmax_connections = '572'\n" in text
    assert "GiB" not in CellConfig("admin", "/run").postgresql_conf()


def machine(root: Path, groups: str, **limits: str) -> Path:
    """A root folder with these control groups, and files with limits."""
    for path, text in {"proc/self/cgroup": groups, **limits}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return root


def test_this_machines_memory_is_found() -> None:
    assert 0 < machine_memory_bytes() <= PHYSICAL_BYTES


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b", {"sys/fs/cgroup/a/b/memory.max": "4096"}, 4_096),
        ("0::/a/b", {"sys/fs/cgroup/a/memory.max": "4096", "sys/fs/cgroup/a/b/memory.max": "max"}, 4_096),
        # A container that sees only itself, and one that sees the name of its group outside.
        ("0::/", {"sys/fs/cgroup/memory.max": "4096"}, 4_096),
        ("0::/../outside", {"sys/fs/cgroup/memory.max": "4096"}, 4_096),
        ("4:cpu:/x\n3:hugetlb,memory:/a\n0::/", {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096"}, 4_096),
        ("3:memory:/a", {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": UNLIMITED_V1}, PHYSICAL_BYTES),
        ("0::/a", {"sys/fs/cgroup/a/memory.max": "max"}, PHYSICAL_BYTES),
        ("0::/a", {}, PHYSICAL_BYTES),
    ],
)
def test_a_container_counts_with_what_it_is_allowed(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: int
) -> None:
    assert machine_memory_bytes(machine(tmp_path, groups, **limits)) == expected


def test_without_control_groups_the_machines_memory_counts(tmp_path: Path) -> None:
    assert machine_memory_bytes(tmp_path) == PHYSICAL_BYTES
