"""Measures, once a minute, what an operator has to watch: cells, certificates, backups, archives. Deletes old permits.

    upkeep = Upkeep(directory, observe, files)
    asyncio.create_task(upkeep.run())
    upkeep.load()                           # what the metrics show

It runs beside the requests and never delays them: each cell has a few seconds to answer, and the metrics show what was
measured last. A cell that does not answer is shown as such, and its measures are left out.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from psycopg.conninfo import conninfo_to_dict

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.observation import CellUpkeep, FailureObserved, Observe, UpkeepLoad, describe_for_operators
from plainsql_server.directory import cells
from plainsql_server.directory.cells import CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sharing import permits
from plainsql_server.directory.upkeep.backup_record import backup_state
from plainsql_server.directory.upkeep.rehearsal_record import RehearsalState, rehearsal_states
from plainsql_server.engine.admin.activity import watching
from plainsql_server.engine.admin.measures import (
    CellMeasures,
    archive_backup_age_s,
    disk_space_of,
    measure,
    measure_archiving,
)
from plainsql_server.engine.pool.address import hosts_of

_LOOK_EVERY_S = 60.0
_CELL_TIMEOUT_S = 10.0
# With more, the measuring itself would be a load for the control plane.
_CELLS_AT_ONCE = 8
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_LARGEST_PEM_BYTES = 1 << 20
_HERE = ("localhost", "127.0.0.1", "::1")


class Upkeep:
    """Measures everything once a minute, and keeps the result for the metrics.

    `certificate_files` are certificates of this process, by the name that their metric gets.
    """

    def __init__(self, directory: Directory, observe: Observe, certificate_files: Mapping[str, str]) -> None:
        self._directory = directory
        self._observe = observe
        self._certificate_files = certificate_files
        self._load = UpkeepLoad()

    def load(self) -> UpkeepLoad:
        return self._load

    async def run(self) -> None:
        """Runs forever."""
        while True:
            try:
                await permits.delete_old(self._directory)
                await self.look()
            except Exception as error:
                # Usually the directory is unavailable. The loop must survive, because nothing restarts it.
                self._observe(FailureObserved(now(), "failure", "upkeep", describe_for_operators(error)))
            await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Measures once. Raises ServiceError if the directory is unavailable; then the last measures stay."""
        listed = [cell for cell in await cells.list_(self._directory) if cell.state is not CellState.DOWN]
        backups = await backup_state(self._directory)
        rehearsals = await rehearsal_states(self._directory)
        async with self._directory.connection() as connection:
            archiving = await measure_archiving(connection)
        limit = asyncio.Semaphore(_CELLS_AT_ONCE)
        measured = await asyncio.gather(*(self._measured(cell, limit) for cell in listed))
        expiry_s = await asyncio.to_thread(self._expiry_s, listed)
        for cell, each in zip(listed, measured, strict=True):
            if each is not None and each.certificate_pem:
                _add(expiry_s, f"cell {cell.name}", each.certificate_pem.encode())
        self._load = UpkeepLoad(
            measured_at_s=time.time(),
            cells=[_cell(cell, each, rehearsals.get(cell.id)) for cell, each in zip(listed, measured, strict=True)],
            certificate_expiry_s=expiry_s,
            backup_age_s=backups.oldest_age_s,
            directory_backup_age_s=backups.directory_age_s,
            backups_failing=backups.failing,
            directory_archive_lag_s=archiving.archive_lag_s,
        )

    async def _measured(self, cell: CellRecord, limit: asyncio.Semaphore) -> CellMeasures | None:
        try:
            async with limit, asyncio.timeout(_CELL_TIMEOUT_S), watching(cell.conninfo, cell.admin_role) as connection:
                return await measure(connection)
        except (ServiceError, TimeoutError):
            # That it is unavailable is a measure, too; the alert says to run `doctor`, which says why.
            return None

    def _expiry_s(self, listed: list[CellRecord]) -> dict[str, float]:
        expiry_s: dict[str, float] = {}
        for name, file in self._certificate_files.items():
            _add(expiry_s, name, _first_certificate(file))
        for cell in listed:
            client = conninfo_to_dict(cell.conninfo).get("sslcert")
            if client:
                _add(expiry_s, f"client of cell {cell.name}", _first_certificate(str(client)))
        return expiry_s


def _cell(cell: CellRecord, measures: CellMeasures | None, rehearsals: RehearsalState | None) -> CellUpkeep:
    if measures is None:
        return CellUpkeep(cell.name)
    rehearsed, stream = rehearsals if measures.has_pgbackrest else None, measures.stream
    return CellUpkeep(
        cell.name,
        is_up=True,
        transaction_id_age=measures.transaction_id_age,
        multixact_id_age=measures.multixact_id_age,
        standbys_missing=max(0, len(hosts_of(cell.conninfo)) - 1 - measures.standbys),
        behind_bytes=measures.behind_bytes,
        is_archiving_failing=measures.is_archiving_failing,
        archive_lag_s=measures.archive_lag_s,
        archive_backup_age_s=archive_backup_age_s(measures, cell.created_at),
        rehearsal_age_s=rehearsed.age_s if rehearsed else None,
        is_rehearsal_failing=rehearsed.is_failing if rehearsed else None,
        is_stream_received=stream.is_received if stream else None,
        stream_lag_bytes=stream.lag_bytes if stream else None,
        stream_lag_s=stream.lag_s if stream else None,
        is_stream_lost=stream.is_lost if stream else None,
        disk_free_ratio=measures.disk.free_ratio if measures.disk else _disk_free_ratio(cell, measures.data_directory),
    )


def _disk_free_ratio(cell: CellRecord, data_directory: str) -> float | None:
    """The free part of a cell's disk, if it is a disk of this machine. For a cell whose guard does not tell."""
    host = str(conninfo_to_dict(cell.conninfo).get("host") or "/")
    if not host.startswith("/") and host not in _HERE:
        return None
    try:
        return disk_space_of(data_directory).free_ratio
    except OSError:
        return None


def _first_certificate(file: str) -> bytes:
    """The first certificate in a file, and nothing else that it holds."""
    try:
        with Path(file).open("rb") as stream:
            match = _PEM.search(stream.read(_LARGEST_PEM_BYTES))
    except OSError:
        return b""
    return match[0] if match else b""


def _add(expiry_s: dict[str, float], name: str, pem: bytes) -> None:
    """Adds when a certificate expires. One that can't be read has no metric, which its alert notices."""
    try:
        expiry_s[name] = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError:
        return
