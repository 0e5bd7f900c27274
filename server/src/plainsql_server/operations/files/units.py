"""systemd units of the planes, of the backups, of the renewal of certificates, and of a cell's guard.

    unit_texts("/opt/plainsql/bin/plainsql-server")     # {"plainsql-data.service": …, "plainsql-backup.timer": …}
    guard_unit("/opt/plainsql/bin/plainsql-server", "/var/lib/postgresql/15/main")

`plainsql-server units` writes the first ones. The guard's unit belongs to a cell; `cell files` writes it.
"""

from pathlib import PurePosixPath

from plainsql_server.operations.files.placing import WRITTEN_BY

USER = "plainsql"
# Backups need more rights than the planes have, so these must not be able to read its key.
BACKUP_USER = "plainsql-backup"
CONFIG_FOLDER = "/etc/plainsql"

_HEADING = f"{WRITTEN_BY} Do not edit: generate it again. Override settings with `systemctl edit`.\n"

# What a plane needs is the network, and to read its own files. It writes no files at all.
_HARDENING = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
PrivateDevices=yes
PrivateTmp=yes
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
"""

_UNIT = """\
{heading}# /etc/systemd/system/plainsql-{plane}.service
[Unit]
Description=PlainSQL: {plane} plane
Wants=network-online.target
After=network-online.target postgresql.service redis-server.service
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
Group={user}
EnvironmentFile={folder}/{plane}.env
ExecStart={program} {plane}
# A minimal machine has no program `kill`, but every shell has the command.
ExecReload=/bin/sh -c "kill -s HUP $MAINPID"
# SIGTERM goes to the parent process, which lets its workers finish their requests.
KillMode=mixed
TimeoutStopSec=60
Restart=always
RestartSec=1
# Each client and each connection to a cell takes one.
LimitNOFILE=65536
# The key of the other plane, and those of the authorities.
InaccessiblePaths=-{folder}/{other} -{folder}/pki
{hardening}
[Install]
WantedBy=multi-user.target
"""

_BACKUP_UNIT = """\
{heading}# /etc/systemd/system/plainsql-backup.service
#
# {folder}/backup.env holds PLAINSQL_DIRECTORY_DSN, with the role plainsql_operator, what libpq needs to reach the cells
# (as in control.env), and how to encrypt, for example:
#   BACKUP_PIPE=age -r age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p
#   BACKUP_KEEP_DAYS=30
[Unit]
Description=PlainSQL: backups of the directory and all databases
Wants=network-online.target
After=network-online.target postgresql.service
RequiresMountsFor=/var/lib/plainsql/backups

[Service]
Type=oneshot
User={user}
Environment=BACKUP_KEEP_DAYS=14 BACKUP_PIPE=
EnvironmentFile={folder}/backup.env
ExecStart={program} backups --to /var/lib/plainsql/backups --keep-days ${{BACKUP_KEEP_DAYS}} --pipe ${{BACKUP_PIPE}}
StateDirectory=plainsql plainsql/backups
StateDirectoryMode=0700
UMask=0077
TimeoutStartSec=12h
Nice=10
IOSchedulingClass=idle
InaccessiblePaths=-{folder}/data -{folder}/control -{folder}/pki
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
"""

_BACKUP_TIMER = """\
{heading}# Starts plainsql-backup.service every night: /etc/systemd/system/plainsql-backup.timer
[Unit]
Description=PlainSQL: nightly backups

[Timer]
OnCalendar=*-*-* 02:15:00
RandomizedDelaySec=30min
# After a time without power, the missed run is made up for.
Persistent=yes

[Install]
WantedBy=timers.target
"""

# With a run every week, this leaves twelve attempts before a certificate expires.
_RENEW_WITHIN_DAYS = 90

_RENEW_UNIT = """\
{heading}# /etc/systemd/system/plainsql-renew.service
#
# root runs it: the keys of the authorities are root's, and each certificate gets the owner of its program. It can write
# below {folder} only. For certificates elsewhere, add their folders to ReadWritePaths with `systemctl edit`.
[Unit]
Description=PlainSQL: renews certificates before they expire
# If the authorities are on another machine, certificates are renewed there.
ConditionPathExists={folder}/pki/register.json

[Service]
Type=oneshot
ExecStart={program} pki renew --within-days {days} --pki {folder}/pki
# Also if nothing was renewed, or not everything: the last reload may have failed, and some certificates may be new. The
# unit fails if one of the two commands does. postgresql.service stands for all clusters of the machine, also for those
# that PlainSQL does not use: each reads its configuration again.
ExecStopPost=systemctl try-reload-or-restart postgresql.service plainsql-data.service plainsql-control.service
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folder}
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
"""

_RENEW_TIMER = """\
{heading}# Starts plainsql-renew.service every week: /etc/systemd/system/plainsql-renew.timer
[Unit]
Description=PlainSQL: weekly renewal of certificates

[Timer]
OnCalendar=Mon *-*-* 04:30:00
RandomizedDelaySec=30min
# After a time without power, the missed run is made up for.
Persistent=yes

[Install]
WantedBy=timers.target
"""

_GUARD_UNIT = """\
{heading}# Gives customers who use little CPU time priority, and measures the cell's disk:
# /etc/systemd/system/plainsql-guard.service
[Unit]
Description=PlainSQL: CPU priorities of a cell's customers, and its disk
After=postgresql.service
StartLimitIntervalSec=0

[Service]
User=postgres
ExecStart={program} cell guard "{data_folder}"
AmbientCapabilities=CAP_SYS_NICE
CapabilityBoundingSet=CAP_SYS_NICE
NoNewPrivileges=yes
ProtectSystem=strict
# It writes a file to the data folder that says how much is free. The folder around it is writable, too, because Patroni
# makes the data folder of a standby later, or anew.
ReadWritePaths={writable}
ProtectHome=yes
PrivateNetwork=yes
Nice=-5
OOMScoreAdjust=-900
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""

_OTHER = {"data": "control", "control": "data"}


def unit_texts(program: str, folder: str = CONFIG_FOLDER) -> dict[str, str]:
    """Return the text of each unit by its name. Raises ValueError for a path that systemd would misread."""
    check_paths(program, folder)
    return {
        **{
            f"plainsql-{plane}.service": _UNIT.format(
                heading=_HEADING, plane=plane, other=other, user=USER, folder=folder, program=program,
                hardening=_HARDENING,
            )
            for plane, other in _OTHER.items()
        },
        "plainsql-backup.service": _BACKUP_UNIT.format(
            heading=_HEADING, user=BACKUP_USER, folder=folder, program=program
        ),
        "plainsql-backup.timer": _BACKUP_TIMER.format(heading=_HEADING),
        "plainsql-renew.service": _RENEW_UNIT.format(
            heading=_HEADING, folder=folder, program=program, days=_RENEW_WITHIN_DAYS
        ),
        "plainsql-renew.timer": _RENEW_TIMER.format(heading=_HEADING),
    }  # fmt: skip


def guard_unit(program: str, data_folder: str) -> str:
    """Return the text of the guard's unit. Raises ValueError as above."""
    check_paths(program, data_folder)
    parent = str(PurePosixPath(data_folder).parent)
    # Of the whole system, only the data folder.
    folders = [data_folder] if parent == "/" else [parent, data_folder]
    writable = " ".join(f"-{folder}" for folder in folders)
    return _GUARD_UNIT.format(heading=_HEADING, program=program, data_folder=data_folder, writable=writable)


def check_paths(*paths: str) -> None:
    """Raise ValueError for a path that systemd would misread."""
    for path in paths:
        if not path.startswith("/") or any(char.isspace() or char in "%\"'\\$;" for char in path):
            raise ValueError(f"systemd needs an absolute path without spaces and special characters, not {path!r}.")
