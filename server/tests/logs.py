"""What the programs that a test uses have logged during it, for the report if it fails.

    with logs.watching(folder, "log/*.log"):
        …

`conftest.py` calls `begin` before each test and puts `written` into the report of one that fails.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LINES = 30

# Files, and how long each was when the test began.
_begun_bytes: dict[Path, int] = {}
# Folders and patterns of programs that run.
_watched: list[tuple[Path, str]] = []
# What those had logged that ended with an error, whose files are gone by the time of the report.
_kept: dict[str, str] = {}


@contextmanager
def watching(folder: Path, pattern: str) -> Iterator[None]:
    """For the length of the block, the files in the folder with such names are part of the report."""
    watched = (folder, pattern)
    _watched.append(watched)
    try:
        yield
    except BaseException:
        _kept.update(_written_in(folder, pattern))
        raise
    finally:
        _watched.remove(watched)


def begin() -> None:
    """A test begins: what has been logged so far is not its."""
    _kept.clear()
    _begun_bytes.clear()
    _begun_bytes.update({file: file.stat().st_size for each in _watched for file in each[0].glob(each[1])})


def written() -> dict[str, str]:
    """The last lines that each program has logged since the test began, by the name of the file."""
    found = dict(_kept)
    for folder, pattern in _watched:
        found |= _written_in(folder, pattern)
    return found


def _written_in(folder: Path, pattern: str) -> dict[str, str]:
    tails = {str(file.relative_to(folder.parent)): _tail(file) for file in sorted(folder.glob(pattern))}
    return {name: tail for name, tail in tails.items() if tail}


def _tail(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(_begun_bytes.get(file, 0))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-_LINES:])
