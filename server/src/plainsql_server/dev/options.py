"""The options of `plainsql-server dev`, and the error that it shows to the user."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The command's options. Port 0 means any free port."""

    directory: Path
    data_port: int = 0
    control_port: int = 0
    alias_port: int = 0
    tier: str = "free"
    workers: int = 1
    tls: bool = True
    postgres_major: int | None = None


class DevError(Exception):
    """An error that the user can act on. The message is shown as it is."""
