"""The PlainSQL parts: provisioning, then the two planes.

They run as separate processes, as in production, but as forks of `dev` where that is possible: importing what they need
takes half a second, and `dev` does it once, while PostgreSQL starts. This module decides their settings.
"""

import json
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from signal import Signals as Signal
from typing import Any

from plainsql_server.dev.certificates import Certificates
from plainsql_server.dev.cluster import DIRECTORY_DATABASE, SUPERUSER, Cluster
from plainsql_server.dev.folder import Folder
from plainsql_server.dev.forks import CAN_FORK
from plainsql_server.dev.local_http import HOST, answers
from plainsql_server.dev.parts import Part
from plainsql_server.dev.postgres import Postgres
from plainsql_server.dev.processes import Launcher
from plainsql_server.settings import PREFIX, SettingsError, read_settings


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the planes listen, and the alias if there is one."""

    data_port: int
    control_port: int
    own_ports: range
    """The ports of the data plane's processes, beside the one that they share."""
    alias_port: int | None
    certificates: Certificates | None

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """With it, the planes are reached; None without TLS."""
        return ssl.create_default_context(cafile=str(self.certificates.ca_file)) if self.certificates else None

    @property
    def data_url(self) -> str:
        return self._url(self.data_port)

    @property
    def control_url(self) -> str:
        return self._url(self.control_port)

    @property
    def alias_url(self) -> str | None:
        return None if self.alias_port is None else self._url(self.alias_port)

    def _url(self, port: int) -> str:
        return f"{'https' if self.certificates else 'http'}://localhost:{port}"


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What provisioning created or found."""

    database: str
    engine_database: str
    tier: str


class Provisioning(Part):
    """Migrates the directory and ensures that a cell, an organization, a database and a key exist."""

    name = "provisioning"
    needs = frozenset({Postgres.name})
    lasting = False
    start_limit_s = 60.0
    stop_plan = ((0.0, Signal.SIGKILL),)

    def __init__(self, launcher: Launcher, folder: Folder, cluster: Cluster, tier: str | None) -> None:
        self._launcher = launcher
        self._folder = folder
        self._cluster = cluster
        self._tier = tier

    def prepare(self) -> None:
        _load()

    def start(self) -> None:
        self._folder.provisioned_file.unlink(missing_ok=True)
        order: dict[str, str | None] = {
            "conninfo": self._cluster.conninfo,
            "admin_role": SUPERUSER,
            "directory_database": DIRECTORY_DATABASE,
            "tier": self._tier,
            "api_key_file": str(self._folder.api_key_file),
            "secrets_keys_file": str(self._folder.secrets_keys_file),
            "result_file": str(self._folder.provisioned_file),
        }
        if CAN_FORK:
            self.child = self._launcher.fork(
                self.name, partial(_provision, order), environment=own_environment(), death_signal=Signal.SIGKILL
            )
            return
        self.child = self._launcher.launch(
            self.name,
            [sys.executable, "-m", "plainsql_server.dev.provision", json.dumps(order)],
            environment=own_environment(),
            death_signal=Signal.SIGKILL,
        )

    def ready(self) -> bool:
        if self.child is None or not self.child.exited():
            return False
        if self.child.process.returncode != 0:
            raise self.failure("failed")
        return True

    def result(self) -> Provisioned:
        return Provisioned(**json.loads(self._folder.provisioned_file.read_text()))

    def detail(self) -> str:
        result = self.result()
        return f"database {result.database}, tier {result.tier}"


class Plane(Part):
    """The data plane or the control plane."""

    # PostgreSQL for the stop: a plane writes what it has counted when it ends.
    needs = frozenset({Provisioning.name, Postgres.name})

    def __init__(
        self, name: str, launcher: Launcher, addresses: Addresses, settings: Mapping[str, str], *needed: str
    ) -> None:
        self.name = name
        self.needs = type(self).needs.union(needed)
        self._launcher = launcher
        self._port = addresses.data_port if name == "data" else addresses.control_port
        self._url = addresses.data_url if name == "data" else addresses.control_url
        self._settings = settings
        # uvicorn starts several workers by running this process's program again.
        self._is_forked = CAN_FORK and (name == "control" or settings[f"{PREFIX}WORKERS"] == "1")
        self._ssl_context = addresses.ssl_context

    def start(self) -> None:
        environment = {**own_environment(), **self._settings}
        if self._is_forked:
            self.child = self._launcher.fork(
                self.name, partial(_serve, self.name), environment=environment, death_signal=Signal.SIGTERM
            )
            return
        self.child = self._launcher.launch(
            self.name,
            [sys.executable, "-m", "plainsql_server", self.name],
            environment=environment,
            death_signal=Signal.SIGTERM,
        )

    def ready(self) -> bool:
        return answers(self._port, self._ssl_context)

    def detail(self) -> str:
        return self._url


def plane_settings(folder: Folder, cluster: Cluster, addresses: Addresses, redis_url: str | None) -> dict[str, str]:
    """The settings that both planes share, as environment variables. `as_role` makes those of one."""
    values = {
        "directory_dsn": cluster.directory_dsn(SUPERUSER),
        "data_url": addresses.data_url,
        "control_url": addresses.control_url,
        "data_host": HOST,
        "data_port": str(addresses.data_port),
        "control_host": HOST,
        "control_port": str(addresses.control_port),
        "workers": str(len(addresses.own_ports)),
        "worker_port": str(addresses.own_ports[0]),
        "advertised_host": HOST,
        # A development machine has no load balancer that must notice the stop first.
        "drain_ms": "0",
        # An empty variable counts as unset, and overrides a variable from the user's shell.
        "tls_cert_file": str(addresses.certificates.cert_file) if addresses.certificates else "",
        "tls_key_file": str(addresses.certificates.key_file) if addresses.certificates else "",
        "mcp_data_url": "",
        "mcp_ca_file": str(addresses.certificates.ca_file) if addresses.certificates else "",
        "alias_url": addresses.alias_url or "",
        "redis_url": redis_url or "",
        "secrets_keys": "",
        "secrets_keys_file": str(folder.secrets_keys_file),
        "unsealed_secrets": "accept",
    }
    return {PREFIX + name.upper(): value for name, value in values.items()}


def as_role(settings: Mapping[str, str], cluster: Cluster, role: str) -> dict[str, str]:
    """The settings of a plane, or of an operator, who logs in to the directory as one of its roles."""
    return {**settings, f"{PREFIX}DIRECTORY_DSN": cluster.directory_dsn(role)}


def _load() -> None:
    """Imports what the forks need."""
    if CAN_FORK:
        import plainsql_server.assembly  # noqa: PLC0415
        import plainsql_server.dev.provision  # noqa: F401, PLC0415


def _provision(order: Mapping[str, Any]) -> int:
    from plainsql_server.dev.provision import Order, carry_out  # noqa: PLC0415

    return carry_out(Order(**order))


def _serve(plane: str) -> int:
    """Does what `plainsql-server data` and `plainsql-server control` do."""
    from plainsql_server.assembly import serve_control, serve_data  # noqa: PLC0415

    try:
        (serve_data if plane == "data" else serve_control)(read_settings())
    except SettingsError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def own_environment() -> dict[str, str]:
    """The user's environment for our own processes, without PG… variables that would redirect libpq."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
