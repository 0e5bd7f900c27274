"""A stream of a cell's WAL to another machine, by pg_receivewal: PostgreSQL's settings, units, environment, password.

    stream = StreamConfig("/srv/received", "cell-1.example", 5432, "/etc/postgresql/15/main/pgbackrest")
    stream.settings(), stream.texts("/opt/plainsql/bin/plainsql-server")
    login = new_login()
    login.passfile, login.role_sql

`plainsql-server cell files --stream-to` writes them. The archive (`archive.py`) has what was written until a minute
ago; the receiver has what was written a moment ago, until the archive has it, too.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from plainsql_server.engine.admin.cell import STREAM_ROLE
from plainsql_server.operations.files.placing import WRITTEN_BY
from plainsql_server.operations.files.units import CONFIG_FOLDER, check_paths

_HEADING = f"{WRITTEN_BY} Do not edit: generate it again. Override settings with `systemctl edit`.\n"

_RECEIVER_UNIT = """\
{heading}# /etc/systemd/system/plainsql-stream.service, on the machine that receives the WAL.
[Unit]
Description=PlainSQL: receives the cell's WAL
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
RequiresMountsFor={folder}

[Service]
User=postgres
EnvironmentFile={environment}
# Each piece of WAL is on the disk before the cell hears that it was received, and the cell keeps it until then.
ExecStart=/usr/bin/pg_receivewal --synchronous --no-password --slot={role} --directory={folder}
Restart=always
RestartSec=1
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folder}
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
UMask=0077

[Install]
WantedBy=multi-user.target
"""

_PRUNING_UNIT = """\
{heading}# /etc/systemd/system/plainsql-stream-prune.service, on the machine that receives the WAL.
[Unit]
Description=PlainSQL: deletes received WAL that the archive has
RequiresMountsFor={folder}

[Service]
Type=oneshot
User=postgres
ExecStart={program} wal prune {folder} --archive "{config_folder}"
Nice=10
IOSchedulingClass=idle
TimeoutStartSec=1h
NoNewPrivileges=yes
ProtectHome=yes
PrivateDevices=yes
"""

_PRUNING_TIMER = """\
{heading}# /etc/systemd/system/plainsql-stream-prune.timer
[Unit]
Description=PlainSQL: deletes received WAL that the archive has, every ten minutes

[Timer]
OnCalendar=*:0/10
RandomizedDelaySec=1min

[Install]
WantedBy=timers.target
"""

_ENVIRONMENT = """\
{heading}# {environment}: how the receiver reaches the cell.
PGHOST={host}
PGPORT={port}
PGUSER={role}
PGAPPNAME={role}
PGSSLMODE=verify-full
PGSSLROOTCERT={own}/servers.crt
PGSSLCRL={own}/servers.crl
PGPASSFILE={own}/passfile
"""

_PASSFILE = """\
# The password with which {role} receives the WAL: {folder}/passfile, for its owner alone.
*:*:*:{role}:{password}
"""

# psql runs it. The last line is continued with the checksum of the others.
_ROLE_SQL = """\
-- Makes the role that receives the WAL, with its password, which is in the file `passfile`, and its replication slot.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role};
    END IF;
END $$;
ALTER ROLE {role} REPLICATION LOGIN PASSWORD '{verifier}';
SELECT pg_create_physical_replication_slot('{role}', true)
WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{role}');
-- """
# As PostgreSQL's own. The password is random, so more would add nothing.
_SCRAM_ROUNDS = 4096


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Where the WAL is received, and how the receiver reaches the cell."""

    folder: str
    """On the receiver's machine."""
    host: str
    port: int
    config_folder: str
    """The folder of pgBackRest's configuration, which the receiver's machine has at the same path."""
    receiver: str = "all"
    """Address, network or name from which the receiver connects, as in pg_hba.conf."""

    def __post_init__(self) -> None:
        check_paths(self.folder)
        for host in (self.host, self.receiver):
            if not host or any(char.isspace() or char in "\"'\\%#,+" for char in host):
                raise ValueError(f"This is no name or address of a host: {host!r}")

    def settings(self) -> dict[str, str]:
        """Return PostgreSQL's settings."""
        return {
            # WAL kept for a receiver that is away. Beyond this, its slot is lost, and the disk doesn't fill up.
            "max_slot_wal_keep_size": "16GB",
            # When a silent receiver is given up, so that it is seen to be away.
            "wal_sender_timeout": "10s",
        }

    def texts(self, program: str) -> dict[str, str]:
        """Return the files for the receiver's machine, by their path. `program` is the path of plainsql-server there.

        Raises ValueError for a path that systemd would misread.
        """
        check_paths(program)
        environment = f"{CONFIG_FOLDER}/stream.env"
        return {
            "stream/plainsql-stream.service": _RECEIVER_UNIT.format(
                heading=_HEADING, folder=self.folder, role=STREAM_ROLE, environment=environment
            ),
            "stream/plainsql-stream-prune.service": _PRUNING_UNIT.format(
                heading=_HEADING, folder=self.folder, program=program, config_folder=self.config_folder
            ),
            "stream/plainsql-stream-prune.timer": _PRUNING_TIMER.format(heading=_HEADING),
            "stream/stream.env": _ENVIRONMENT.format(
                heading=f"{WRITTEN_BY}\n", environment=environment, host=self.host, port=self.port, role=STREAM_ROLE,
                own=f"{CONFIG_FOLDER}/stream",
            ),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReceiverLogin:
    """How the receiver logs in: its file with the password, and what makes its role with it."""

    passfile: str
    role_sql: str


def new_login() -> ReceiverLogin:
    """Return a new password, and what PostgreSQL checks it with."""
    password, salt = secrets.token_urlsafe(32), secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _SCRAM_ROUNDS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    salt_text, stored_text, server_text = (
        base64.b64encode(each).decode() for each in (salt, stored, hmac.digest(salted, b"Server Key", "sha256"))
    )
    verifier = f"SCRAM-SHA-256${_SCRAM_ROUNDS}:{salt_text}${stored_text}:{server_text}"
    return ReceiverLogin(
        _PASSFILE.format(role=STREAM_ROLE, folder=f"{CONFIG_FOLDER}/stream", password=password),
        _ROLE_SQL.format(role=STREAM_ROLE, verifier=verifier),
    )
