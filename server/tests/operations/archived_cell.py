"""A cell whose WAL pgBackRest archives, as `cell files --archive-to` configures it."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from plainsql_server.operations.files.archive import STANZA, ArchiveConfig, new_key_conf
from plainsql_server.operations.files.cell import CellConfig
from server.tests.operations.stage import Stage
from server.tests.postgres import SUPERUSER, run_as_postgres, running_postgres
from server.tests.processes import wait_for
from server.tests.run_folder import run_folder


@dataclass(frozen=True)
class ArchivedCell:
    """An operator's world with an archive, and a folder for spare clusters."""

    stage: Stage
    config_folder: Path
    work_folder: Path

    def back_up(self, kind: str = "full") -> None:
        """A backup. Any time after it can be restored."""
        self.pgbackrest(f"--type={kind}", "backup")
        # pgBackRest restores a backup to a later second than that in which it ended.
        ended_s = int(time.time())
        wait_for(lambda: time.time() >= ended_s + 1, 60, lambda: "the clock does not go on")

    def pgbackrest(self, *arguments: str) -> None:
        run_as_postgres("pgbackrest", f"--config-path={self.config_folder}", f"--stanza={STANZA}", *arguments)

    def options(self, point: str) -> tuple[str, ...]:
        """Those of `restore` that name a moment."""
        return "--at", point, "--archive", str(self.config_folder), "--work-folder", str(self.work_folder)

    def left_over(self) -> list[str]:
        return [path.name for path in self.work_folder.iterdir()]


def _configured(others: Mapping[str, str], root: Path) -> CellConfig:
    folder = root / "pgbackrest"
    archive = ArchiveConfig(str(root / "repository"), str(folder), SUPERUSER, str(root / "data"), str(root))
    (folder / "conf.d").mkdir(parents=True)
    (folder / "pgbackrest.conf").write_text(archive.pgbackrest_conf())
    (folder / "conf.d/key.conf").write_text(new_key_conf())
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, "postgres", "postgres")
    return CellConfig(SUPERUSER, str(root), others={**archive.settings(), **others})


@contextmanager
def archived_cell(settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[ArchivedCell]:
    """With one full backup of the cell, which has one database, `main`, and these settings beside the usual ones."""
    locks = None
    try:
        with running_postgres(partial(_configured, settings)) as postgres:
            root = Path(postgres.socket_dir)
            locks = _lock_folder(root / "pgbackrest")
            # The path of a socket must be short.
            with tempfile.TemporaryDirectory(prefix="s", dir=run_folder()) as work_folder:
                Path(work_folder).chmod(0o711)
                cell = ArchivedCell(Stage.made(postgres), root / "pgbackrest", Path(work_folder))
                cell.pgbackrest("stanza-create")
                cell.back_up()
                yield cell
    finally:
        # PostgreSQL archives until it ends.
        if locks is not None:
            shutil.rmtree(locks)


def _lock_folder(config_folder: Path) -> str:
    """Where pgBackRest keeps its locks. The path is the cell's own."""
    (folder,) = re.findall("^lock-path=(.+)$", (config_folder / "pgbackrest.conf").read_text(), re.MULTILINE)
    return str(folder)
