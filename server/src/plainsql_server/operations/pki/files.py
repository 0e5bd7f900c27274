"""Writes keys, certificates and what is trusted, so that a reader sees the old or the new file and never a part.

write_file(folder / "client.key", pem, 0o600, owner="plainsql")
"""

import os
import pwd
import secrets
from pathlib import Path


def write_file(path: Path, text: str, mode: int, owner: str | None = None) -> None:
    """Replace a file by one with this content, these permissions and this owner. It is on the disk afterwards."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
            give(unfinished, owner)
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def make_folder(path: Path, mode: int, owner: str | None = None) -> None:
    """Make a folder and those around it, unless it exists."""
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=mode)
    path.chmod(mode)
    give(path, owner)


def give(path: Path, owner: str | None) -> None:
    """Make a system user the owner, with its group; a number is both ids of a user that only a container knows.

    None: the user who runs this.
    """
    if owner is not None and owner.isdecimal():
        os.chown(path, int(owner), int(owner))
    elif owner is not None:
        user = pwd.getpwnam(owner)
        os.chown(path, user.pw_uid, user.pw_gid)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
