"""`plainsql-server cell ha-files`: write the configuration of a cell of several machines, one folder per machine."""

from pathlib import Path

import click

from plainsql_server.cli.cell.files import memory_bytes, memory_option
from plainsql_server.cli.output import remark
from plainsql_server.operations.files.cell import CellConfig, Tls
from plainsql_server.operations.files.drop_in import BOUNDS
from plainsql_server.operations.files.ha_cell import HEADING, Files, HaConfig, Node

_LEAST_NODES = 3

_PATRONI_UNIT = f"""\
{HEADING}# /etc/systemd/system/plainsql-patroni.service
[Unit]
Description=PostgreSQL of a PlainSQL cell, under Patroni
Wants=network-online.target
After=network-online.target plainsql-etcd.service

[Service]
User=postgres
Group=postgres
ExecStart=/usr/bin/env patroni /etc/plainsql/patroni.yml
ExecReload=/bin/sh -c "kill -s HUP $MAINPID"
Restart=always
RestartSec=1
# PostgreSQL must not outlive Patroni: only Patroni knows when another server leads.
KillMode=mixed
TimeoutStopSec=60
{BOUNDS}
[Install]
WantedBy=multi-user.target
"""

_ETCD_UNIT = f"""\
{HEADING}# /etc/systemd/system/plainsql-etcd.service
[Unit]
Description=etcd of a PlainSQL cell
Wants=network-online.target
After=network-online.target

[Service]
User=postgres
Group=postgres
StateDirectory=etcd
Type=notify
ExecStart=/usr/bin/etcd --config-file /etc/plainsql/etcd.yml
Restart=always
RestartSec=1
# Its answers decide which server leads, so they must not wait for the cell's disk or CPU.
Nice=-10
IOSchedulingClass=best-effort
IOSchedulingPriority=0
LimitNOFILE=65536
NoNewPrivileges=yes
ProtectHome=yes
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


@click.command("ha-files")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", required=True, metavar="NAME", help="Name of the cell, the same on all machines.")
@click.option(
    "--node", "nodes", multiple=True, required=True, metavar="NAME=HOST",
    help="Name and address of a machine; repeat for three or more, an odd number.",
)  # fmt: skip
@click.option(
    "--admin-role", required=True, metavar="ROLE", help="Superuser that the service logs in as to provision databases."
)
@click.option(
    "--certificates", default="/etc/plainsql", show_default=True, metavar="FOLDER",
    help="Folder on each machine with node.crt, node.key, nodes.crt, clients.crt, replication.crt and replication.key.",
)  # fmt: skip
@click.option(
    "--data-directory", default="/var/lib/postgresql/15/plainsql", show_default=True, help="PostgreSQL's data folder."
)
@click.option(
    "--bin-directory", default="/usr/lib/postgresql/15/bin", show_default=True, help="Folder of PostgreSQL's programs."
)
@click.option(
    "--socket-directory", default="/run/postgresql", show_default=True, help="Folder of PostgreSQL's local socket."
)
@click.option(
    "--network", "networks", multiple=True, default=["0.0.0.0/0", "::0/0"], show_default=True,
    help="Network that the service connects from; repeatable.",
)  # fmt: skip
@click.option(
    "--watchdog", type=click.Choice(["required", "automatic", "off"]), default="automatic", show_default=True,
    help="required: only a machine with a watchdog may lead. automatic: use one if present. off: use none.",
)  # fmt: skip
@memory_option
def ha_files_command(
    *, folder: Path, name: str, nodes: tuple[str, ...], admin_role: str, certificates: str, data_directory: str,
    bin_directory: str, socket_directory: str, networks: tuple[str, ...], watchdog: str, memory_gib: float | None,
) -> None:  # fmt: skip
    """Write the configuration of a cell that survives the loss of a machine to FOLDER.

    FOLDER gets one folder per machine, with patroni.yml and etcd.yml for /etc/plainsql. The systemd units are the same
    on all machines. Prints the hosts for `cell add --conninfo`.

    A quarter of the memory of the smallest machine is for connections. After the first start, max_connections and
    max_locks_per_transaction are in etcd and no longer read from the files: change them with `patronictl edit-config`,
    and restart the standbys before the leader.
    """
    try:
        cell = CellConfig(
            admin_role, socket_directory,
            Tls(f"{certificates}/node.crt", f"{certificates}/node.key", f"{certificates}/clients.crt"),
            networks=networks, memory_bytes=memory_bytes(memory_gib),
        )  # fmt: skip
        config = HaConfig(
            name,
            _nodes(nodes),
            cell,
            Files.in_folder(certificates),
            data_directory,
            bin_directory=bin_directory,
            watchdog=watchdog,
        )
        texts = {f"{node.name}/patroni.yml": config.patroni_yml(node) for node in config.nodes}
        texts |= {f"{node.name}/etcd.yml": config.etcd_yml(node) for node in config.nodes}
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    texts |= {"plainsql-patroni.service": _PATRONI_UNIT, "plainsql-etcd.service": _ETCD_UNIT}
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    remark(f"Wrote {', '.join(sorted(texts))} to {folder.resolve()}.")
    click.echo(config.conninfo())


def _nodes(pairs: tuple[str, ...]) -> list[Node]:
    named = [pair.partition("=") for pair in pairs]
    wrong = next(
        (pair for pair, (name, _, host) in zip(pairs, named, strict=True) if not (name.isalnum() and host)), None
    )
    if wrong is not None:
        raise ValueError(f"Expected NAME=HOST, such as a=10.0.0.1, got {wrong!r}.")
    if len({name for name, _, _ in named}) != len(named):
        raise ValueError("Two machines have the same name.")
    if len(named) < _LEAST_NODES or len(named) % 2 == 0:
        # With two machines, neither can know that the other is dead. Four survive no more losses than three.
        raise ValueError(f"Expected three machines or more, an odd number, got {len(named)}.")
    return [Node(name, host) for name, _, host in named]
