"""The configuration of the directory's PostgreSQL cluster, by the path in its folder.

    directory_texts(machine)["pg_hba.conf"]

No password exists. Planes log in over TLS with their certificates. Operators log in on the socket as the system user
root, and backups as `plainsql-backup`. The control plane's certificate names the admin role of the cells, so a map
leads from that name to its role in the directory.
"""

from plainsql_server.operations.files.placing import WRITTEN_BY
from plainsql_server.operations.files.units import BACKUP_USER
from plainsql_server.operations.setup.machine import ADMIN_ROLE, DIRECTORY_DATABASE, OWNER_ROLE, Machine

_HEADING = f"{WRITTEN_BY} Do not edit: your changes would be kept as a copy. Override settings with ALTER SYSTEM.\n"
_LOCAL_MAP, _CERTIFICATE_MAP = "plainsql_local", "plainsql_certificate"
_LOOPBACK = ("127.0.0.1/32", "::1/128")


def directory_texts(machine: Machine) -> dict[str, str]:
    """Return the text of each file."""
    return {
        "conf.d/plainsql.conf": _HEADING + _settings(machine),
        "pg_hba.conf": _HEADING + "\n".join(_hba_lines()) + "\n",
        "pg_ident.conf": _HEADING + "\n".join(_ident_lines()) + "\n",
    }


def _settings(machine: Machine) -> str:
    folder = machine.config / "directory"
    settings = {
        "listen_addresses": "localhost",
        "ssl": "on",
        "ssl_cert_file": f"{folder}/server.crt",
        "ssl_key_file": f"{folder}/server.key",
        "ssl_ca_file": f"{folder}/clients.crt",
        "ssl_crl_file": f"{folder}/clients.crl",
        "ssl_min_protocol_version": "TLSv1.2",
        # Statements contain names of customers and hashes of keys.
        "log_min_error_statement": "panic",
        "log_parameter_max_length_on_error": "0",
    }
    return "".join(f"{name} = '{value}'\n" for name, value in settings.items())


def _hba_lines() -> list[str]:
    lines = [
        "local all postgres peer",
        f"local {DIRECTORY_DATABASE} {OWNER_ROLE},plainsql_operator peer map={_LOCAL_MAP}",
    ]
    for network in _LOOPBACK:
        lines += [
            f"hostssl {DIRECTORY_DATABASE} plainsql_data {network} cert",
            f"hostssl {DIRECTORY_DATABASE} plainsql_control {network} cert map={_CERTIFICATE_MAP}",
        ]
    return lines


def _ident_lines() -> list[str]:
    return [
        f"{_LOCAL_MAP} root {OWNER_ROLE}",
        f"{_LOCAL_MAP} root plainsql_operator",
        f"{_LOCAL_MAP} {BACKUP_USER} plainsql_operator",
        f"{_CERTIFICATE_MAP} {ADMIN_ROLE} plainsql_control",
    ]
