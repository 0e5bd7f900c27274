"""Writes what is free on a cell's disk to a file in its data folder, where its admin can read it.

    DiskFigure(data_folder, print).run(ended)

`engine/admin/measures.py` reads it. `cell guard` writes it beside its other work.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from plainsql_server.engine.admin.cell import DISK_FILE
from plainsql_server.engine.admin.measures import disk_space_of

_EVERY_S = 10.0


class DiskFigure:
    """The figure of one cluster."""

    def __init__(self, data_folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = data_folder
        self._tell = tell
        self._failure = ""

    def run(self, ended: threading.Event) -> None:
        """Write it until the event is set. What fails is reported once, and tried again."""
        while True:
            try:
                self.write()
                self._failure = ""
            except OSError as error:
                failure = f"cannot write what is free on the disk: {error}"
                if failure != self._failure:
                    self._tell(failure)
                self._failure = failure
            if ended.wait(_EVERY_S):
                return

    def write(self) -> None:
        """Write it once, if a server uses the folder. Raises OSError."""
        if not (self._folder / "postmaster.pid").exists():
            return
        space = disk_space_of(self._folder)
        # Readers see the old or the new one.
        unfinished = self._folder / f"{DISK_FILE}.new"
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with open(descriptor, "w") as file:
            file.write(f"{space.free_bytes} {space.total_bytes}\n")
        unfinished.rename(self._folder / DISK_FILE)
