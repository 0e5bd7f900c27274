"""The environment files of a machine that runs the whole service, by their name in /etc/plainsql.

    environment_texts(machine)["data.env"]

`data.env`, `control.env` and `backup.env` are for systemd units. `owner.env` is for `migrate` and `upgrade`, which
need the owner of the directory's tables. `operator.env` is for a shell: `. /etc/plainsql/operator.env`.

None of these files contains a secret; the key that seals the directory's secrets is in `secrets.keys`. Over the
network, planes log in with certificates, to the directory and to cells. Operators and backups log in to the directory
on its socket, as a system user.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from plainsql_server.operations.setup.machine import DIRECTORY_DATABASE, OWNER_ROLE, Machine

DATA_PORT, CONTROL_PORT = 8400, 8401
SOCKET_FOLDER = "/run/postgresql"
SECRETS_KEYS = "secrets.keys"
# `setup` writes it last.
LAST_FILE = "operator.env"
# The names of organizations are UTF-8, whatever a shell's locale is.
_ENCODING = "client_encoding=utf8"


def environment_texts(machine: Machine) -> dict[str, str]:
    """Return the text of each file."""
    return {
        "data.env": _unit_text("the data plane", {**_plane(machine, "data"), "PLAINSQL_DATA_HOST": "0.0.0.0"}),
        "control.env": _unit_text(
            "the control plane", {**_plane(machine, "control"), "PLAINSQL_CONTROL_HOST": "0.0.0.0"}
        ),
        "backup.env": _unit_text("the nightly backups", _backup(machine)),
        "owner.env": _unit_text("`migrate` and `upgrade`", {"PLAINSQL_DIRECTORY_DSN": _local_dsn(machine, OWNER_ROLE)}),
        LAST_FILE: _shell_text(machine, _operator(machine)),
    }


def _urls(machine: Machine) -> dict[str, str]:
    return {
        "PLAINSQL_DATA_URL": f"https://{machine.host}:{DATA_PORT}",
        "PLAINSQL_CONTROL_URL": f"https://{machine.host}:{CONTROL_PORT}",
    }


def _plane(machine: Machine, plane: str) -> dict[str, str]:
    return {
        "PLAINSQL_DIRECTORY_DSN": f"host=localhost port={machine.directory_port} dbname={DIRECTORY_DATABASE}"
        f" user=plainsql_{plane} sslmode=verify-full {_ENCODING}",
        **_urls(machine),
        **_secrets(machine),
        **_own_certificate(machine, plane),
        **_certificate_for_cells(machine.config / plane),
    }


def _secrets(machine: Machine) -> dict[str, str]:
    """Everything is sealed from the start, so nothing else has to be accepted."""
    return {
        "PLAINSQL_SECRETS_KEYS_FILE": f"{machine.config}/{SECRETS_KEYS}",
        "PLAINSQL_UNSEALED_SECRETS": "refuse",
    }


def _own_certificate(machine: Machine, plane: str) -> dict[str, str]:
    return {
        "PLAINSQL_TLS_CERT_FILE": f"{machine.config}/{plane}/server.crt",
        "PLAINSQL_TLS_KEY_FILE": f"{machine.config}/{plane}/server.key",
    }


def _certificate_for_cells(folder: Path) -> dict[str, str]:
    """How libpq logs in to cells, and to the directory over the network."""
    return {
        "PGSSLROOTCERT": f"{folder}/servers.crt",
        "PGSSLCRL": f"{folder}/servers.crl",
        "PGSSLCERT": f"{folder}/client.crt",
        "PGSSLKEY": f"{folder}/client.key",
    }


def _backup(machine: Machine) -> dict[str, str]:
    return {
        "PLAINSQL_DIRECTORY_DSN": _local_dsn(machine, "plainsql_operator"),
        **_certificate_for_cells(machine.config / "backup"),
    }


def _operator(machine: Machine) -> dict[str, str]:
    folder = machine.config / "operator"
    return {
        "PLAINSQL_DIRECTORY_DSN": _local_dsn(machine, "plainsql_operator"),
        **_urls(machine),
        **_secrets(machine),
        # Where `plainsql` sends its requests, and what it and `doctor` trust.
        "PLAINSQL_URL": f"https://{machine.host}:{DATA_PORT}",
        "PLAINSQL_CA_FILE": f"{folder}/servers.crt",
        # What `doctor` checks.
        **_own_certificate(machine, "data"),
        "PLAINSQL_DATA_HOST": "0.0.0.0",
        "PLAINSQL_CONTROL_HOST": "0.0.0.0",
        **_certificate_for_cells(folder),
    }


def _local_dsn(machine: Machine, role: str) -> str:
    return f"host={SOCKET_FOLDER} port={machine.directory_port} dbname={DIRECTORY_DATABASE} user={role} {_ENCODING}"


def _unit_text(what: str, variables: Mapping[str, str]) -> str:
    lines = [f'{name}="{value}"' if " " in value else f"{name}={value}" for name, value in variables.items()]
    return "\n".join([
        f"# Environment of {what}. `plainsql-server setup` wrote it once, and never changes it.",
        "# `plainsql-server settings` lists all variables.", *lines, "",
    ])  # fmt: skip


def _shell_text(machine: Machine, variables: Mapping[str, str]) -> str:
    folder = shlex.quote(str(Path(machine.program).parent))
    return "\n".join([
        f"# Variables of the operator's commands, for a shell: `. {machine.config}/operator.env`.",
        "# `plainsql-server setup` wrote it once, and never changes it.", f'export PATH={folder}:"$PATH"',
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()), "",
    ])  # fmt: skip
