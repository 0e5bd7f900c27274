"""Put a generated file in the place of another program's file, without losing that one.

    placed = place_file(Path("/etc/postgresql/15/main/pg_hba.conf"), text)
    placed.kept        # the copy of what was there before, if that was not ours

The file that was there is copied to `NAME.before-plainsql` first. A copy is never overwritten: if there is one with
other content, the next is `NAME.before-plainsql.2`. A file that PlainSQL wrote is replaced without a copy, unless it
was edited since: its last line is a checksum. The new file has the owner and permissions of the old one, or the owner
of its folder, so that root can write PostgreSQL's files.
"""

import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

# The first words of all generated files.
WRITTEN_BY = "# Written by PlainSQL."
_SUFFIX = ".before-plainsql"
_CHECKSUM = "# Checksum of the lines above: "


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file that was written, and where the file that it replaced is kept, if that was not ours or was edited."""

    path: Path
    kept: Path | None


def place_file(path: Path, text: str, mode: int = 0o644) -> PlacedFile:
    """Write a file. `mode` applies if there was none."""
    # A link stays a link to the new content.
    path = path.resolve()
    make_folder(path.parent)
    kept = _keep(path) if path.exists() and not _is_unchanged(path) else None
    _replace(path, with_checksum(text), mode)
    return PlacedFile(path, kept)


def with_checksum(text: str) -> str:
    """A generated text as it is in its file."""
    return f"{text}{_CHECKSUM}{hashlib.sha256(text.encode()).hexdigest()[:16]}\n"


def _is_unchanged(path: Path) -> bool:
    """Whether it is as PlainSQL wrote it. A file of a version without checksums may have been edited."""
    content = path.read_text(errors="replace")
    return content.startswith(WRITTEN_BY) and content == with_checksum(content.rpartition(_CHECKSUM)[0])


def make_folder(folder: Path) -> None:
    """Make a folder with the owner of the folder around it, unless it exists."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir()
    # Not what the umask of a shell says: other users read the files in it.
    folder.chmod(0o755)
    _give(folder, folder.parent.stat())


def _keep(path: Path) -> Path:
    content = path.read_bytes()
    names = (path.name + _SUFFIX + (f".{number}" if number > 1 else "") for number in count(1))
    copies = (path.with_name(name) for name in names)
    copy = next(each for each in copies if not each.exists() or each.read_bytes() == content)
    if not copy.exists():
        _copy(path, content, copy)
    return copy


def _copy(path: Path, content: bytes, copy: Path) -> None:
    """Write a copy that at no time more users can read than the file itself."""
    before, unfinished = path.stat(), _beside(copy)
    with open(_new_file(unfinished), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _give(unfinished, before)
    shutil.copystat(path, unfinished)
    unfinished.rename(copy)


def _replace(path: Path, text: str, mode: int) -> None:
    """Write to another name and rename, so that a crash leaves the old or the new file."""
    before = path.stat() if path.exists() else None
    unfinished = _beside(path)
    descriptor = _new_file(unfinished)
    with open(descriptor, "w") as file:
        file.write(text)
        _give(unfinished, before or path.parent.stat())
        os.fchmod(descriptor, before.st_mode & 0o7777 if before else mode)
        file.flush()
        os.fsync(descriptor)
    unfinished.rename(path)


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _give(path: Path, example: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.chown(path, example.st_uid, example.st_gid)
