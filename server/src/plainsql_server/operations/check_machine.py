"""Doctor's checks of this machine: files named in the settings, ports, limits, installed programs, disk space.

Certificates are in `check_certificates.py`.
"""

import contextlib
import errno
import resource
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.admin.measures import DiskSpace, disk_space_of
from plainsql_server.operations.asking import AskingError, get
from plainsql_server.operations.findings import Finding, Target, broken, good, warning
from plainsql_server.operations.programs import find_program
from plainsql_server.settings import PREFIX

# Each client connection and each cell connection takes one. The common default of 1024 is meant for desktops.
_DESCRIPTORS = 4_096
_OLDEST_MAJOR = 15


async def files(target: Target) -> AsyncIterator[Finding]:
    """Check that only the owner can access files with secrets."""
    settings = target.settings
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        yield broken(
            "files", "Only one of PLAINSQL_TLS_CERT_FILE and PLAINSQL_TLS_KEY_FILE is set.", "Set both or neither."
        )
    keywords = conninfo_to_dict(settings.directory_dsn)
    secret = {
        f"{PREFIX}TLS_KEY_FILE": settings.tls_key_file,
        "the directory's sslkey": keywords.get("sslkey"),
        "the directory's passfile": keywords.get("passfile"),
    }
    for name, path in secret.items():
        if path:
            yield _secret_file(name, Path(str(path)))


def _secret_file(name: str, file: Path) -> Finding:
    try:
        mode = file.stat().st_mode
        with file.open("rb"):
            pass
    except OSError as error:
        return broken(
            "files", f"{file} ({name}) can't be read: {error.strerror}.", "Use a file that this user can read."
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return broken(
            "files",
            f"{file} ({name}) is accessible to other users: mode {stat.S_IMODE(mode):04o}.",
            f"Run `chmod 600 {file}`.",
        )
    return good("files", f"{file} ({name}) is accessible only to its owner.")


async def ports(target: Target) -> AsyncIterator[Finding]:
    """Check that each plane listens on its port, or that the port is free."""
    settings = target.settings
    planes = {
        "data": (settings.data_host, settings.data_port, settings.data_url),
        "control": (settings.control_host, settings.control_port, settings.control_url),
    }
    for name, (host, port, _) in planes.items():
        try:
            with _bound(host, port):
                yield good("ports", f"{host}:{port} is free; the {name} plane is not running on this machine.")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                yield broken(
                    "ports", f"The {name} plane can't listen on {host}:{port}: {error.strerror}.",
                    f"Set {PREFIX}{name.upper()}_HOST to an address of this machine, and use a port above 1023.",
                )  # fmt: skip
            else:
                yield await _occupant(target, name, host, port)


async def _occupant(target: Target, name: str, host: str, port: int) -> Finding:
    scheme = "https" if target.settings.tls_cert_file else "http"
    try:
        found = (await get(f"{scheme}://{host}:{port}", "/health?live", target.ca_file)).json()
    except AskingError as error:
        # A plane's certificate names its public host, not the address it listens on.
        found = {"version": ""} if "certificate" in str(error) else {}
    if "version" in found:
        return good("ports", f"A plane listens on {host}:{port}.")
    return broken(
        "ports", f"Another program listens on {host}:{port}, the port of the {name} plane.",
        f"Find it with `ss -ltnp 'sport = :{port}'` and stop it, or set {PREFIX}{name.upper()}_PORT to another port.",
    )  # fmt: skip


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[None]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
        yield


async def limits(target: Target) -> AsyncIterator[Finding]:
    """Check that a process may open enough files and sockets for its connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(_DESCRIPTORS, 4 * (target.settings.cell_max_connections or 0))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield good("limits", f"A process may open {soft} files.")
        return
    yield warning(
        "limits", f"A process may open {soft} files; a plane should be allowed {needed} or more.",
        f"Set LimitNOFILE={needed} in the service's unit, or run `ulimit -n {needed}` before you start it.",
    )  # fmt: skip


async def programs(_: Target) -> AsyncIterator[Finding]:
    """Check that backups can be made from this machine."""
    for name in ("pg_dump", "pg_restore"):
        try:
            yield good("programs", f"{find_program(name, _OLDEST_MAJOR)} is available for backups.")
        except RequestError as error:
            yield warning("programs", error.message, error.hint or "")


def disk_of(check: str, path: str, free_percent: float) -> Finding | None:
    """Check the free space on a folder's disk. Returns None if the folder is not on this machine."""
    try:
        space = disk_space_of(path)
    except OSError:
        return None
    return disk(check, path, space, free_percent)


def disk(check: str, path: str, space: DiskSpace, free_percent: float) -> Finding:
    """Check the free space on the disk of a cell's data folder, which may be on another machine."""
    free = 100 * space.free_ratio if space.total_bytes else 100.0
    summary = f"The disk of {path} has {free:.0f} % free ({space.free_bytes / 1e9:.1f} GB)"
    if free >= free_percent:
        return good(check, f"{summary}.")
    grade = broken if free < free_percent / 2 else warning
    return grade(
        check, f"{summary}; a cell needs {free_percent:g} %. When its disk is full, it stops for every customer.",
        "Enlarge the disk, delete what is not needed, or move databases to another cell.",
    )  # fmt: skip
