"""Keeps the alias on the running data plane processes: writes its configuration again when they change, reloads nginx.

    await Follower(directory, file, render, ["nginx", "-s", "reload"], report).run()

`render` makes the configuration for a list of addresses. An address that nginx cannot use is reported and left out, or
one process could keep nginx from all others. If the directory is unavailable or lists no process, the file
stays as it is: nginx itself finds out which of the addresses respond.
"""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable, Sequence
from pathlib import Path

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.observation import describe_for_operators
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sharing import processes
from plainsql_server.operations.files.alias import is_address

# A process that stops leaves the list when it begins to drain, and drains for a second by default.
_EVERY_S = 1.0
_RELOAD_LIMIT_S = 30.0
# For how many looks processes are kept that vanished from the list with most others: until each has renewed its entry.
_LOOKS_TO_KEEP = int(processes.RENEWED_WITHIN_S / _EVERY_S) + 2


class ReloadError(Exception):
    """The command that reloads nginx failed."""


class Follower:
    """Writes the file and reloads nginx. `report` gets a line for each change and each new failure."""

    def __init__(
        self,
        directory: Directory,
        file: Path,
        render: Callable[[Sequence[str]], str],
        reload_command: Sequence[str],
        report: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._file = file
        self._render = render
        self._reload_command = reload_command
        self._report = report
        # nginx may have read an older file than the one that is there.
        self._must_reload = True
        self._failure = ""
        self._listed: list[str] = []
        self._unusable: set[str] = set()
        self._looks_to_keep = 0

    async def run(self) -> None:
        """Follows the processes until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Follows the processes once. A failure is reported, and what failed is tried again the next time."""
        try:
            await self._follow()
            self._failure = ""
        except ServiceError as error:
            self._report_failure(f"{describe_for_operators(error)}.")
        except (ReloadError, OSError, ValueError) as error:
            self._report_failure(str(error))

    async def _follow(self) -> None:
        async with self._directory.connection() as connection:
            live = self._usable(await processes.addresses(connection))
        if not live:
            raise ValueError("No data plane process with a port of its own is running.")
        live = self._without_sudden_losses(live)
        text, before = self._render(live), _content(self._file)
        if text == before and not self._must_reload:
            return
        if text != before:
            _write(self._file, text)
        self._must_reload = True
        try:
            await _run(self._reload_command)
        except ReloadError:
            # nginx still runs with what it has read before, and must be able to start with the file.
            if before is not None:
                _write(self._file, before)
            raise
        self._must_reload = False
        if text != before:
            self._report(f"Wrote {self._file} for {', '.join(live)}.")

    def _usable(self, addresses: list[str]) -> list[str]:
        """Leaves out what is no address, and reports it when it appears."""
        unusable = {address for address in addresses if not is_address(address)}
        for address in sorted(unusable - self._unusable):
            self._report(f"Leaving out a process whose address nginx cannot use: {address!r}.")
        self._unusable = unusable
        return [address for address in addresses if address not in unusable]

    def _without_sudden_losses(self, live: list[str]) -> list[str]:
        """If most processes vanish from the list at once, keeps them for a while: they may be late to renew it."""
        if self._looks_to_keep:
            self._looks_to_keep -= 1
        elif 2 * len(set(self._listed) - set(live)) > len(self._listed):
            self._looks_to_keep = _LOOKS_TO_KEEP
        if self._looks_to_keep:
            return sorted({*live, *self._listed})
        self._listed = live
        return live

    def _report_failure(self, failure: str) -> None:
        if failure != self._failure:
            self._report(f"{failure} Trying again.")
        self._failure = failure


def _content(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _write(file: Path, text: str) -> None:
    """Replaces a file at once, so that nginx never reads a part of it."""
    new = file.with_name(f"{file.name}.new")
    with new.open("w", encoding="utf-8") as output:
        output.write(text)
        output.flush()
        os.fsync(output.fileno())
    new.replace(file)


async def _run(command: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    try:
        async with asyncio.timeout(_RELOAD_LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise ReloadError(f"`{' '.join(command)}` did not end in {_RELOAD_LIMIT_S:g} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        shown = " ".join(output.decode(errors="replace").split())
        raise ReloadError(f"`{' '.join(command)}` failed: {shown}.")
