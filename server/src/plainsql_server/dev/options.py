"""What `plainsql-server dev` may be told, and the one error that it reports to the person who ran it.

Owns the options' meaning. Refuses to parse a command line.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The command's options. A port of 0 means any free one."""

    directory: Path
    data_port: int = 0
    control_port: int = 0
    alias_port: int = 0
    tier: str = "free"
    workers: int = 1
    tls: bool = True
    postgres_major: int | None = None


class DevError(Exception):
    """Something that the person at the keyboard can act on; the message is shown as it is."""
