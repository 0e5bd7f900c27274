"""`plainsql-server cell files`: the configuration that a cell's PostgreSQL runs with, written to a folder."""

from pathlib import Path

import click

from plainsql_server.cli.output import remark
from plainsql_server.operations.files.cell import BACKEND_MEMORY_BYTES, HEADING, CellConfig, Tls

# What a service that runs PostgreSQL is bounded by.
BOUNDS = f"""\
# What one backend may take besides the shared buffers. A statement that wants more fails alone.
LimitDATA={BACKEND_MEMORY_BYTES // 1024**2}M
# If the machine itself runs out, a backend goes and not the server.
OOMScoreAdjust=-900
Environment=PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj PG_OOM_ADJUST_VALUE=0
# A group of its own for the scheduler, within which the priorities count that the guard sets.
CPUWeight=100
# A cell's host holds nothing but the cell, and what runs there sees nothing else.
NoNewPrivileges=yes
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
"""

_UNIT = f"""\
{HEADING}# A drop-in for PostgreSQL's own unit: /etc/systemd/system/postgresql@.service.d/plainsql.conf
[Service]
{BOUNDS}"""

_GUARD_UNIT = f"""\
{HEADING}# Lets customers who take little processor time go first: /etc/systemd/system/plainsql-guard.service
[Unit]
Description=PlainSQL: priorities of a cell's customers
After=postgresql.service
StartLimitIntervalSec=0

[Service]
User=postgres
ExecStart=/usr/bin/env plainsql-server cell guard "{{data_folder}}"
AmbientCapabilities=CAP_SYS_NICE
CapabilityBoundingSet=CAP_SYS_NICE
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateNetwork=yes
Nice=-5
OOMScoreAdjust=-900
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""


@click.command("files")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--admin-role", required=True, metavar="ROLE", help="The superuser that provisioning logs in as.")
@click.option(
    "--cert-file", default="server.crt", show_default=True, help="The cell's certificate, as it will be there."
)
@click.option("--key-file", default="server.key", show_default=True, help="Its private key.")
@click.option(
    "--client-ca-file", default="clients.crt", show_default=True, help="Authority of the service's certificates."
)
@click.option("--socket-directory", default="/run/postgresql", show_default=True, help="Where its local socket goes.")
@click.option(
    "--data-folder",
    default="/var/lib/postgresql/15/main",
    show_default=True,
    help="PostgreSQL's, for the guard's unit.",
)
@click.option(
    "--network",
    "networks",
    multiple=True,
    default=["0.0.0.0/0", "::0/0"],
    show_default=True,
    help="From where the service connects; repeatable.",
)
def files_command(
    *, folder: Path, admin_role: str, cert_file: str, key_file: str, client_ca_file: str, socket_directory: str,
    data_folder: str, networks: tuple[str, ...],
) -> None:  # fmt: skip
    """Write the configuration of a cell's PostgreSQL to FOLDER.

    postgresql.conf, pg_hba.conf and pg_ident.conf go to its data folder, memory.conf beside its systemd unit;
    guard.service is a unit of its own, for `cell guard`. The service logs in by certificates: one in the name of the
    admin role for the control plane, and one in any other name for the data plane, which opens every tenant's role and
    not the admin's.
    """
    try:
        config = CellConfig(
            admin_role, socket_directory, Tls(cert_file, key_file, client_ca_file), networks=networks
        )  # fmt: skip
        texts = {
            "postgresql.conf": config.postgresql_conf(), "pg_hba.conf": config.pg_hba_conf(),
            "pg_ident.conf": config.pg_ident_conf(), "memory.conf": _UNIT,
            "guard.service": _GUARD_UNIT.format(data_folder=data_folder),
        }  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    remark(f"Wrote {', '.join(texts)} to {folder}.")
