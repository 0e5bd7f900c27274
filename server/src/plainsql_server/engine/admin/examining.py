"""Reads the facts about a cell that `plainsql-server doctor` checks, from its catalogs and as its admin.

The checks themselves are in `operations/`. Of tenants, only the names and flags of their databases are read.
"""

from dataclasses import dataclass, field

from psycopg import AsyncConnection

from plainsql_server.engine.admin import extensions, login_rules, tenants_group
from plainsql_server.engine.admin.activity import rows
from plainsql_server.engine.admin.cell import STREAM_ROLE, TEMPLATE
from plainsql_server.engine.admin.extensions import AllowedExtension
from plainsql_server.engine.admin.login_rules import Admission, ReceiverRules
from plainsql_server.engine.admin.provisioning import VERSION_FLOOR
from plainsql_server.engine.pool.health import PROBE_ROLE

_SETTINGS = (
    "max_connections", "superuser_reserved_connections", "max_prepared_transactions", "fsync", "full_page_writes",
    "log_statement", "log_min_error_statement", "data_directory", "default_transaction_isolation",
    "synchronous_standby_names", "max_locks_per_transaction", "autovacuum_naptime", "max_files_per_process",
    # Commands that every tenant can read.
    "archive_command", "restore_command", "archive_cleanup_command", "recovery_end_command",
)  # fmt: skip

_TEMPLATE = """
    SELECT datistemplate AS is_template, datallowconn AS is_open, pg_encoding_to_char(encoding) AS encoding,
           datdba = (SELECT oid FROM pg_roles WHERE rolname = current_user) AS is_ours
    FROM pg_database WHERE datname = %s
"""
_OPEN_TO_ALL = """
    SELECT datname FROM pg_database
    WHERE datallowconn AND EXISTS (
        SELECT FROM aclexplode(coalesce(datacl, acldefault('d', datdba))) AS entry
        WHERE entry.grantee = 0 AND entry.privilege_type = 'CONNECT')
    ORDER BY datname
"""
_CUSTOMERS = "SELECT datname, datallowconn FROM pg_database WHERE datname ~ '^d_[0-9a-f]{24}$'"
# With `clientcert`, `trust` only means that the holder of a certificate may log in as any role.
_OPEN_NETWORK = """
    SELECT line_number, type || ' ' || array_to_string(database, ',') || ' ' || array_to_string(user_name, ',')
           || ' ' || coalesce(address, '') AS rule
    FROM pg_hba_file_rules WHERE type LIKE 'host%' AND auth_method = 'trust'
      AND NOT coalesce(options && ARRAY['clientcert=verify-ca', 'clientcert=verify-full'], false)
"""
# That of a receiver of the WAL is measured by `measures.py`.
_STILL_SLOTS = f"""
    SELECT slot_name, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS kept_bytes
    FROM pg_replication_slots WHERE NOT active AND slot_name <> '{STREAM_ROLE}'
"""


@dataclass(frozen=True, slots=True)
class Template:
    """The template database that tenants' databases are copied from."""

    is_template: bool
    is_open: bool
    encoding: str
    is_ours: bool


@dataclass(frozen=True, slots=True)
class CellFacts:
    """The setup of a cell."""

    version: int
    is_superuser: bool
    has_probe: bool
    settings: dict[str, str]
    template: Template | None
    open_to_all: list[str]
    # The names of tenants' databases, and whether they allow connections.
    customers: dict[str, bool]
    open_network: list[str]
    still_slots: dict[str, int]
    extensions: list[AllowedExtension]
    # Powerful roles that pg_hba.conf admits without a proof of who they are.
    admitted: list[Admission] = field(default_factory=list)
    # Tenants' roles that pg_hba.conf does not admit, because they are not in the group.
    ungrouped: list[str] = field(default_factory=list)
    # How it admits the receiver of the WAL. None: there is none.
    receiver: ReceiverRules | None = None

    @property
    def version_text(self) -> str:
        major, minor = divmod(self.version, 10_000)
        return f"{major}.{minor}"

    @property
    def version_floor(self) -> str | None:
        """The oldest supported minor release of its major version; None if the major version is not supported."""
        major = self.version // 10_000
        return None if major not in VERSION_FLOOR else f"{major}.{VERSION_FLOOR[major]}"

    @property
    def is_too_old(self) -> bool:
        major, minor = divmod(self.version, 10_000)
        return major not in VERSION_FLOOR or minor < VERSION_FLOOR[major]

    def number(self, setting: str) -> int:
        return int(self.settings[setting])


async def examine(connection: AsyncConnection) -> CellFacts:
    """Reads all facts. Raises psycopg's errors, which `activity.watching` converts to the service's."""
    template = await rows(connection, _TEMPLATE, TEMPLATE)
    is_standby = (await rows(connection, "SELECT pg_is_in_recovery() AS it"))[0]["it"]
    slots = [] if is_standby else await rows(connection, _STILL_SLOTS)
    settings = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
    roles = "SELECT rolname, rolsuper FROM pg_roles WHERE rolname IN (current_user, %s)"
    known = {row["rolname"]: row["rolsuper"] for row in await rows(connection, roles, PROBE_ROLE)}
    return CellFacts(
        version=connection.info.server_version,
        is_superuser=known.get(connection.info.user, False),
        has_probe=PROBE_ROLE in known,
        settings={row["name"]: row["setting"] for row in await rows(connection, settings, list(_SETTINGS))},
        template=Template(**template[0]) if template else None,
        open_to_all=[row["datname"] for row in await rows(connection, _OPEN_TO_ALL)],
        customers={row["datname"]: row["datallowconn"] for row in await rows(connection, _CUSTOMERS)},
        open_network=[f"line {row['line_number']}: {row['rule']}" for row in await rows(connection, _OPEN_NETWORK)],
        admitted=await login_rules.admissions(connection),
        ungrouped=await tenants_group.missing(connection),
        receiver=await login_rules.receiver_rules(connection),
        still_slots={row["slot_name"]: row["kept_bytes"] or 0 for row in slots},
        extensions=await extensions.allowed(connection),
    )
