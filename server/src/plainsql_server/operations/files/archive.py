"""The continuous archive of a cell or the directory by pgBackRest: its configuration, PostgreSQL's settings, timers.

    archive = ArchiveConfig("/var/lib/pgbackrest", "/etc/postgresql/15/main/pgbackrest", "plainsql_admin", …)
    archive.settings(), archive.pgbackrest_conf(), archive.unit_texts(), archive.restoring_texts(…)

`plainsql-server cell files --archive-to` writes them, and `plainsql-server directory files` those of the directory.
Encryption needs a key, which `new_key_conf` makes once; it is in a file of its own, which no later run changes.
"""

import hashlib
import secrets
from dataclasses import dataclass

from plainsql_server.operations.files.placing import WRITTEN_BY
from plainsql_server.operations.files.units import CONFIG_FOLDER, check_paths

STANZA = "plainsql"
# A file of the WAL is closed after this time, even if it isn't full. So what was written a minute ago is in the
# archive, if archiving works: PostgreSQL looks once a second, and copying the file takes a second or two.
_CLOSED_AFTER_S = 50
# The names of the units.
CELL_ARCHIVE, DIRECTORY_ARCHIVE = "plainsql-archive", "plainsql-directory-archive"

_HEADING = f"{WRITTEN_BY} Do not edit: generate it again. Put what differs into conf.d, under [plainsql].\n"

_CONF = """\
{heading}[global]
repo1-path={repository}
repo1-cipher-type=aes-256-cbc
# Full backups are made every week, and the WAL since the oldest of them is kept: any moment of the last two weeks.
repo1-retention-full=3
repo1-retention-diff=7
# Small files are stored together: a cell has 300 of them for each database.
repo1-bundle=y
start-fast=y
process-max=2
compress-type=zst
log-level-console=warn
log-level-file=off
# Of this cluster alone: others of the machine may have archives, too.
lock-path=/tmp/plainsql-archive-{cluster}

[{stanza}]
pg1-path={data_folder}
pg1-socket-path={socket_directory}
pg1-port={port}
pg1-user={admin_role}
pg1-database=postgres
"""

_KEY = """\
# The key that the archive is encrypted with. Keep a copy elsewhere: without it, the archive can't be read.
[global]
repo1-cipher-pass={key}
"""

_UNIT = """\
{heading}# /etc/systemd/system/{name}@.service: a full or differential backup (full, diff) of the whole cluster.
[Unit]
Description=PlainSQL: %i backup of the {what} to its archive
After=postgresql.service

[Service]
Type=oneshot
User=postgres
# Does nothing if there is one.
ExecStartPre=/usr/bin/pgbackrest "--config-path={config_folder}" --stanza={stanza} stanza-create
ExecStart=/usr/bin/pgbackrest "--config-path={config_folder}" --stanza={stanza} --type=%i backup
Nice=10
IOSchedulingClass=idle
TimeoutStartSec=12h
"""

_REHEARSAL_UNIT = """\
{heading}# /etc/systemd/system/plainsql-archive-rehearsal.service
#
# {environment} holds PLAINSQL_DIRECTORY_DSN, with the role plainsql_operator, and what libpq needs to reach the cell.
# If the directory has several cells, it also has the name of this one: REHEARSE_OPTIONS=--cell eu-1. root runs it, so
# that it can read these files and the key of the archive. PostgreSQL and pgBackRest run as postgres.
[Unit]
Description=PlainSQL: rehearsal of a restore from the cell's archive
Wants=network-online.target
After=network-online.target postgresql.service plainsql-archive@full.service plainsql-archive@diff.service

[Service]
Type=oneshot
Environment=REHEARSE_OPTIONS=
EnvironmentFile={environment}
ExecStart={program} backup rehearse --archive "{config_folder}" $REHEARSE_OPTIONS
Nice=10
IOSchedulingClass=idle
TimeoutStartSec=12h
NoNewPrivileges=yes
ProtectHome=yes
PrivateDevices=yes
"""

_RESTORES_UNIT = """\
{heading}# /etc/systemd/system/plainsql-archive-restores.service
#
# While it runs, customers can restore their databases to a point in time. {environment} holds what
# plainsql-archive-rehearsal.service needs, with
# RESTORES_OPTIONS=--cell eu-1 if the directory has several cells, and the settings of the planes that differ from their
# defaults: PLAINSQL_PRINCIPAL_CACHE_MS, PLAINSQL_DIRECTORY_GRACE_MS and PLAINSQL_DATABASE_RESTORE_S.
[Unit]
Description=PlainSQL: restores to a point in time from the cell's archive
Wants=network-online.target
After=network-online.target postgresql.service

[Service]
Environment=RESTORES_OPTIONS=
EnvironmentFile={environment}
ExecStart={program} restores work --archive "{config_folder}" $RESTORES_OPTIONS
Restart=always
RestartSec=10
Nice=10
IOSchedulingClass=idle
# It leaves the restore that it is working on to its next start. If it has just replaced the content of a database, it
# waits until no node uses the old one.
TimeoutStopSec=3min
NoNewPrivileges=yes
ProtectHome=yes
PrivateDevices=yes

[Install]
WantedBy=multi-user.target
"""

_TIMER = """\
{heading}# /etc/systemd/system/{name}-{kind}.timer
[Unit]
Description=PlainSQL: {task}

[Timer]
OnCalendar={when}
RandomizedDelaySec=30min
Unit={unit}
# After a time without power, the missed run is made up for.
Persistent=yes

[Install]
WantedBy=timers.target
"""
# When a timer starts a backup of this kind, and what it is.
_TIMERS = {
    "full": ("Sun *-*-* 00:45:00", "full backups of the {what}"),
    "diff": ("Mon..Sat *-*-* 00:45:00", "differential backups of the {what}"),
}


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """Where the archive of a cluster is, and how pgBackRest reaches the cluster."""

    repository: str
    """A folder: better on another machine's disk. S3 is set in a file of your own; see docs/backups.md."""
    config_folder: str
    """The folder of pgBackRest's configuration on the cluster's machine."""
    admin_role: str
    data_folder: str
    socket_directory: str
    port: int = 5432
    unit: str = CELL_ARCHIVE
    """CELL_ARCHIVE or DIRECTORY_ARCHIVE."""

    def __post_init__(self) -> None:
        for text in (self.repository, self.config_folder, self.admin_role, self.data_folder, self.socket_directory):
            if not text or any(each in text for each in "\n\r\"'%"):
                raise ValueError(f"This can't be in the configuration of an archive: {text!r}")

    def settings(self) -> dict[str, str]:
        """Return PostgreSQL's settings. Every tenant of a cell can read them, so they contain no secret."""
        push = f'pgbackrest "--config-path={self.config_folder}" --stanza={STANZA} archive-push "%p"'
        return {"archive_mode": "on", "archive_command": push, "archive_timeout": f"{_CLOSED_AFTER_S}s"}

    def postgresql_conf(self) -> str:
        """Return the settings as a file, for a cluster whose other settings are not ours."""
        heading = f"{WRITTEN_BY} Do not edit: generate it again. Override settings with ALTER SYSTEM.\n"
        return heading + "".join(f"{name} = '{value}'\n" for name, value in self.settings().items())

    def pgbackrest_conf(self) -> str:
        """Return the text of pgbackrest.conf."""
        cluster = hashlib.sha256(self.data_folder.encode()).hexdigest()[:12]
        return _CONF.format(
            heading=_HEADING, cluster=cluster, repository=self.repository, stanza=STANZA, data_folder=self.data_folder,
            socket_directory=self.socket_directory, port=self.port, admin_role=self.admin_role,
        )  # fmt: skip

    def unit_texts(self) -> dict[str, str]:
        """Return the text of each systemd unit that makes backups, by its name."""
        what = "cell" if self.unit == CELL_ARCHIVE else "directory"
        service = _UNIT.format(
            heading=_HEADING, name=self.unit, what=what, config_folder=self.config_folder, stanza=STANZA
        )
        timers = {
            f"{self.unit}-{kind}.timer": _TIMER.format(
                heading=_HEADING, name=self.unit, kind=kind, task=task.format(what=what), when=when,
                unit=f"{self.unit}@{kind}.service",
            )
            for kind, (when, task) in _TIMERS.items()
        }  # fmt: skip
        return {f"{self.unit}@.service": service, **timers}

    def restoring_texts(self, program: str) -> dict[str, str]:
        """Return the text of each systemd unit that restores from a cell's archive, for a rehearsal or for customers.

        `program` is the path of plainsql-server. Raises ValueError for a path that systemd would misread.
        """
        check_paths(program)
        service, timer = (f"{self.unit}-rehearsal.{kind}" for kind in ("service", "timer"))
        return {
            service: _REHEARSAL_UNIT.format(
                heading=_HEADING, config_folder=self.config_folder, program=program,
                environment=f"{CONFIG_FOLDER}/backup.env",
            ),
            timer: _TIMER.format(
                heading=_HEADING, name=self.unit, kind="rehearsal", task="nightly rehearsals of a restore",
                when="*-*-* 05:00:00", unit=service,
            ),
            f"{self.unit}-restores.service": _RESTORES_UNIT.format(
                heading=_HEADING, config_folder=self.config_folder, program=program,
                environment=f"{CONFIG_FOLDER}/backup.env",
            ),
        }  # fmt: skip


def new_key_conf() -> str:
    """Return the text of a file with a new key, for `conf.d` beside pgbackrest.conf."""
    return _KEY.format(key=secrets.token_urlsafe(48))
