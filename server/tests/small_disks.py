"""Disks of their own, in memory, for tests that fill one. Only root may mount them, and not everywhere."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def may_mount() -> bool:
    """Whether this user may mount a file system, which root in a container often may not."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=False, capture_output=True)
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return mounted.returncode == 0


@contextmanager
def small_disk(size_bytes: int, parent: Path | None = None) -> Iterator[Path]:
    """The folder of a disk with so many bytes."""
    folder = Path(tempfile.mkdtemp(prefix="disk-", dir=parent))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=755", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder)
