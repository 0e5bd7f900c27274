"""The key of an archive: `make_key(folder)`, for `cell files` and `directory files`."""

from pathlib import Path

from plainsql_server.cli.output import remark
from plainsql_server.operations.files.archive import new_key_conf
from plainsql_server.operations.files.placing import make_folder, place_file


def make_key(folder: Path) -> None:
    """Make the key of the archive that is configured in `folder`, unless there is one: it must stay the same."""
    file = folder / "pgbackrest/conf.d/key.conf"
    make_folder(file.parent)
    if not file.exists():
        place_file(file, new_key_conf(), mode=0o600)
        remark(f"Made the key of the archive, {file}. Keep a copy elsewhere: without it, the archive can't be read.")
