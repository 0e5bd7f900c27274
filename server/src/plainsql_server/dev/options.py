"""The options of `plainsql-server dev`, and the error that it shows to the user."""

from dataclasses import dataclass
from pathlib import Path

# Where `plainsql` looks for the service, in the working directory and above it.
DEFAULT_DIRECTORY = Path(".plainsql")


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The command's options.

    Port 0 means any free port, and None the port that the folder has kept, or the usual one. Tier None means the tier
    that the organization has.
    """

    directory: Path
    data_port: int | None = None
    control_port: int | None = None
    alias_port: int | None = None
    tier: str | None = None
    workers: int = 1
    tls: bool = True
    postgres_major: int | None = None


class DevError(Exception):
    """An error that the user can act on. The message is shown as it is."""
