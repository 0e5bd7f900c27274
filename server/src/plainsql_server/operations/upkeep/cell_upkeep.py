"""Doctor's checks of what keeps a cell running for months: certificates, transaction ids, guard, memory.

What is on the cell's machine is checked only if that is this machine. No private key is read. `cell_archive.py`
checks its archive.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from psycopg.conninfo import conninfo_to_dict

from plainsql_server.engine.admin.measures import CellMeasures
from plainsql_server.operations.check_certificates import validity
from plainsql_server.operations.findings import Finding, broken, good, warning

# Vacuum freezes from 200 million on. PostgreSQL stops accepting writes at two billion.
_ID_AGE_WARNING = 500_000_000
_ID_AGE_BROKEN = 1_500_000_000
_MEMORY_FREE_PERCENT = 10.0
_PROC = Path("/proc")
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_RENEW = "Renew it. The cell's own takes effect when PostgreSQL reloads its configuration."
_LARGEST_PEM_BYTES = 1 << 20


def certificates(check: str, conninfo: str, measures: CellMeasures) -> Iterator[Finding]:
    """Check how long the cell's certificate is valid, and those that this machine has for connections to it."""
    if measures.certificate_pem:
        yield from _certificate(check, "The cell's certificate", measures.certificate_pem.encode())
    for keyword, name in (("sslcert", "The service's certificate"), ("sslrootcert", "The certificate authority")):
        file = conninfo_to_dict(conninfo).get(keyword)
        # If it is missing here, the cell can't be reached, which is reported as that.
        if file and Path(str(file)).is_file():
            yield from _certificate(check, f"{name} {file}", first_certificate(Path(str(file))))


def first_certificate(file: Path) -> bytes:
    """Return the first certificate in a file, and nothing else that it holds."""
    try:
        with file.open("rb") as stream:
            match = _PEM.search(stream.read(_LARGEST_PEM_BYTES))
    except OSError:
        return b""
    return match[0] if match else b""


def _certificate(check: str, name: str, pem: bytes) -> Iterator[Finding]:
    try:
        yield validity(check, name, x509.load_pem_x509_certificate(pem), _RENEW)
    except ValueError:
        yield warning(check, f"{name} can't be read, so its expiry is unknown.", "Use a certificate in PEM format.")


def transaction_ids(check: str, measures: CellMeasures) -> Iterator[Finding]:
    """Check that vacuum keeps up."""
    oldest = max(measures.transaction_id_age, measures.multixact_id_age)
    if oldest < _ID_AGE_WARNING:
        yield good(check, f"Its oldest transaction ID is {oldest:,} transactions old.")
        return
    grade = broken if oldest >= _ID_AGE_BROKEN else warning
    yield grade(
        check, f"Its oldest transaction ID is {oldest:,} transactions old; at 2,000,000,000 it refuses all writes.",
        "Find old transactions with `plainsql-server status`, end them, and run `vacuumdb --all --freeze`.",
    )  # fmt: skip


def machine(check: str, data_directory: str, proc: Path = _PROC) -> Iterator[Finding]:
    """Check the machine of a cell that runs here: the guard, overcommit, free memory, the limit of each backend."""
    commands = _commands(proc)
    if any(_is_guard(arguments, data_directory) for arguments in commands.values()):
        yield good(check, "The guard is running.")
    else:
        yield warning(
            check, "The guard is not running, so one customer can slow down all others.",
            "Start `plainsql-server cell guard` on this machine: deploy/cell has a systemd unit.",
        )  # fmt: skip
    yield from _overcommit(check, proc)
    yield from _memory(check, proc)
    servers = [pid for pid, arguments in commands.items() if _is_server(arguments, data_directory)]
    if any(_is_unlimited(proc / pid / "limits") for pid in servers):
        yield warning(
            check, "Its processes have no limit on their memory, so one statement can use up the machine's.",
            "Install deploy/cell/memory.conf and restart PostgreSQL.",
        )  # fmt: skip


def _overcommit(check: str, proc: Path) -> Iterator[Finding]:
    mode = _text(proc / "sys/vm/overcommit_memory").strip()
    if mode == "2":
        yield good(check, "vm.overcommit_memory is 2.")
    elif mode:
        yield warning(
            check, f"vm.overcommit_memory is {mode}: if memory runs out, Linux may kill PostgreSQL for all customers.",
            "Run `sysctl -w vm.overcommit_memory=2`, and put it into /etc/sysctl.d.",
        )  # fmt: skip


def _memory(check: str, proc: Path) -> Iterator[Finding]:
    found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB", _text(proc / "meminfo"), re.MULTILINE))
    if "MemAvailable" not in found or not int(found.get("MemTotal", 0)):
        return
    free = 100 * int(found["MemAvailable"]) / int(found["MemTotal"])
    if free < _MEMORY_FREE_PERCENT:
        yield warning(
            check, f"Only {free:.0f} % of the machine's memory is available.",
            "Find what uses it, lower max_connections, or add memory.",
        )  # fmt: skip
    else:
        yield good(check, f"{free:.0f} % of the machine's memory is available.")


def _commands(proc: Path) -> dict[str, list[str]]:
    """Return the arguments of every process that can be seen, by process id."""
    found = {}
    for folder in proc.glob("[0-9]*"):
        arguments = _text(folder / "cmdline").split("\0")
        if arguments[0]:
            found[folder.name] = arguments
    return found


def _is_guard(arguments: list[str], data_directory: str) -> bool:
    is_guard = any(pair == ("cell", "guard") for pair in pairwise(arguments))
    return is_guard and any(Path(each) == Path(data_directory) for each in arguments)


def _is_server(arguments: list[str], data_directory: str) -> bool:
    is_postgres = Path(arguments[0]).name in ("postgres", "postmaster")
    return is_postgres and any(pair == ("-D", data_directory) for pair in pairwise(arguments))


def _is_unlimited(limits: Path) -> bool:
    return re.search(r"^Max data size +unlimited", _text(limits), re.MULTILINE) is not None


def _text(file: Path) -> str:
    """Return the content of a file of the kernel; empty if the process has ended or the file is not for us."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
