"""Secrets that are made once: `make_key(folder)` of an archive, `make_login(folder)` of a receiver of the WAL.

For `cell files` and `directory files`.
"""

from pathlib import Path

from plainsql_server.cli.output import remark
from plainsql_server.operations.files.archive import new_key_conf
from plainsql_server.operations.files.placing import make_folder, place_file
from plainsql_server.operations.files.stream import new_login


def make_key(folder: Path) -> None:
    """Make the key of the archive that is configured in `folder`, unless there is one: it must stay the same."""
    file = folder / "pgbackrest/conf.d/key.conf"
    make_folder(file.parent)
    if not file.exists():
        place_file(file, new_key_conf(), mode=0o600)
        remark(f"Made the key of the archive, {file}. Keep a copy elsewhere: without it, the archive can't be read.")


def make_login(folder: Path) -> None:
    """Make the password of the receiver that is configured in `folder`, unless there is one."""
    passfile, role_sql = folder / "stream/passfile", folder / "stream/role.sql"
    if not passfile.exists():
        login = new_login()
        # Not kept as a copy: it holds what checks the old password.
        role_sql.unlink(missing_ok=True)
        # In this order: if this is interrupted, both are made again.
        place_file(role_sql, login.role_sql, mode=0o600)
        place_file(passfile, login.passfile, mode=0o600)
        remark(
            f"Made the password of the receiver, {passfile}. Run {role_sql} on the cell with psql, and copy the"
            " password to the receiver's machine: with only one of the two, the receiver can't log in."
        )
