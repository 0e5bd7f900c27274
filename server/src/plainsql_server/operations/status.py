"""Collects the state of the service: directory, cells, planes, and the queues of this machine's processes.

    status = await gather(directory, settings, ca_file)

A part that does not answer is reported, not an error. To find problems, use `doctor`.
"""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from plainsql_server.core.errors import ServiceError
from plainsql_server.directory import cells, counts
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin import activity
from plainsql_server.engine.admin.activity import CellView
from plainsql_server.operations.asking import AskingError, get
from plainsql_server.settings import Settings

_CELL_METRICS = "plainsql_cell_"


@dataclass(frozen=True, slots=True)
class CellStatus:
    """A cell's directory entry and its live state. `view` is None if the cell did not answer."""

    id: str
    name: str
    state: str
    databases: dict[str, int]
    view: CellView | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PlaneStatus:
    """The health of a plane or the alias at its public URL."""

    name: str
    url: str
    status: str
    version: str | None = None
    uptime_s: int | None = None
    checks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The connections and queue of a data plane process on this machine, over all cells, from its metrics."""

    port: int
    open_connections: int
    running: int
    waiting: int
    streams: int


@dataclass(frozen=True, slots=True)
class Status:
    """The state of everything at one time."""

    directory: dict[str, int]
    cells: list[CellStatus]
    planes: list[PlaneStatus]
    processes: list[ProcessStatus]


async def gather(directory: Directory, settings: Settings, ca_file: Path | None) -> Status:
    """Collect the state of every known part. Raises EngineError if the directory is unavailable."""
    totals = await counts.totals(directory)
    by_cell = await counts.databases_by_cell(directory)
    listed = await cells.list_(directory)
    seen = await asyncio.gather(*(_cell(cell, by_cell.get(cell.id, {})) for cell in listed))
    urls = {"data": settings.data_url, "control": settings.control_url, "alias": settings.alias_url or ""}
    planes = await asyncio.gather(*(_plane(name, url, ca_file) for name, url in urls.items() if url))
    return Status(totals, list(seen), list(planes), await _processes(settings))


async def _cell(cell: CellRecord, databases: dict[str, int]) -> CellStatus:
    known = CellStatus(cell.id, cell.name, str(cell.state), databases)
    try:
        async with activity.watching(cell.conninfo, cell.admin_role) as connection:
            view = await activity.view(connection)
            return replace(known, view=replace(view, size_bytes=await activity.size_bytes(connection)))
    except ServiceError as error:
        return replace(known, problem=error.internal_context or error.message)


async def _plane(name: str, url: str, ca_file: Path | None) -> PlaneStatus:
    try:
        health = (await get(url, "/health", ca_file)).json()
    except AskingError as error:
        return PlaneStatus(name, url, f"no response: {error}")
    return PlaneStatus(
        name,
        url,
        str(health.get("status", "not PlainSQL")),
        health.get("version"),
        health.get("uptime_s"),
        health.get("checks", {}),
    )


async def _processes(settings: Settings) -> list[ProcessStatus]:
    asked = await asyncio.gather(*(_process(settings.metrics_host, port) for port in settings.metrics_ports))
    return [each for each in asked if each is not None]


async def _process(host: str, port: int) -> ProcessStatus | None:
    try:
        answer = await get(f"http://{host}:{port}", "/metrics")
    except AskingError:
        # A process that is not running has no queue.
        return None
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    wanted = ("open_connections", "running", "waiting", "streams")
    return ProcessStatus(port, *(int(sums.get(_CELL_METRICS + name, 0)) for name in wanted))
