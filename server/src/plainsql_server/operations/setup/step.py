"""One step of `setup`.

command_step(["useradd", "plainsql"], is_done)
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plainsql_server.operations.files.placing import place_file
from plainsql_server.operations.setup.running import run


@dataclass(frozen=True, slots=True)
class SetupStep:
    """What is done, in the words of a shell, and whether it is done already."""

    shown: str
    is_done: Callable[[], bool]
    run: Callable[[], str]
    """Does it, and returns what the operator should read: warnings and remarks."""
    is_repair: bool = False
    """Whether it is needed only after an interruption."""


def command_step(command: Sequence[str], is_done: Callable[[], bool]) -> SetupStep:
    """A step that is one command."""
    return SetupStep(shlex.join(command), is_done, partial(run, command))


def placed_step(file: Path, text: str, is_done: Callable[[], bool]) -> SetupStep:
    """A step that writes a file, and keeps a copy of one that was not ours."""
    return SetupStep(f"write {file}", is_done, partial(_place, file, text))


def _place(file: Path, text: str) -> str:
    kept = place_file(file, text).kept
    return f"The previous {file.name} is now {kept}." if kept else ""
