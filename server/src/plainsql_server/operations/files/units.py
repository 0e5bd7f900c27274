"""systemd units for the planes, and the files with their environment variables.

    unit_texts("/opt/plainsql/bin/plainsql-server")     # {"plainsql-data.service": …, "plainsql-control.service": …}

`plainsql-server units` writes them. The guard's unit belongs to a cell; `cell files` writes it.
"""

from plainsql_server.operations.files.placing import WRITTEN_BY

USER = "plainsql"
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
ExecReload=/bin/kill -s HUP $MAINPID
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

_OTHER = {"data": "control", "control": "data"}


def unit_texts(program: str, folder: str = CONFIG_FOLDER) -> dict[str, str]:
    """Return the text of each unit by its name. Raises ValueError for a path that systemd would misread."""
    for path in (program, folder):
        if not path.startswith("/") or any(char.isspace() or char in "%\"'\\$;" for char in path):
            raise ValueError(f"systemd needs an absolute path without spaces and special characters, not {path!r}.")
    return {
        f"plainsql-{plane}.service": _UNIT.format(
            heading=_HEADING, plane=plane, other=other, user=USER, folder=folder, program=program, hardening=_HARDENING
        )
        for plane, other in _OTHER.items()
    }
