"""`plainsql-server`, the operator's command line: the table of commands, and how failures and exit codes look.

Each command has a module in this package, which parses the arguments, calls the packages below and prints. A command's
module is imported only when the command is called: the database driver, Alembic and the web server take a second to
import, and `--help` should not wait for that. This table is the only one of its kind.
"""

import importlib
import signal
from pathlib import Path
from typing import Any

import click

from plainsql_server import VERSION
from plainsql_server.core.errors import ServiceError
from plainsql_server.dev.options import DevError
from plainsql_server.extension_modules import COMPILED_TEXT
from plainsql_server.settings import SettingsError, load_environment_file

# Command: its module in this package, and its line in `--help`.
_COMMANDS = {
    "dev": ("dev", "Run the whole service on this machine, in one folder."),
    "data": ("planes", "Run the data plane."),
    "control": ("planes", "Run the control plane."),
    "migrate": ("migrate", "Create or update the directory's tables."),
    "org": ("org.commands", "Create, list, suspend and delete organizations."),
    "key": ("key", "Create, list and revoke API keys."),
    "cell": ("cell.commands", "Manage cells, the PostgreSQL clusters that hold databases."),
    "directory": ("directory.commands", "Archive the directory; compare it with the cells after a restore."),
    "database": ("database", "Create, list, move, rename, suspend, delete and adopt databases."),
    "usage": ("org.usage", "Show what organizations have used, as CSV or JSON."),
    "secrets": ("secrets", "Create keys that seal secrets in the directory, and rotate them."),
    "pki": ("pki.commands", "Issue, renew and revoke certificates of planes and cells."),
    "doctor": ("doctor", "Check every part of the service and say how to fix what is wrong."),
    "status": ("status", "Show the state of cells, databases, connections, queues, replication and planes."),
    "top": ("top", "Show running statements by organization, or cancel one."),
    "upgrade": ("upgrade", "Upgrade the directory and the cells to this version."),
    "backup": ("backup", "Back up a database or the directory."),
    "backups": ("upkeep.backups", "Back up everything into a folder, and delete old backups."),
    "restore": ("restore", "Restore a database or the directory from a backup."),
    "restores": ("upkeep.restores", "Carry out restores to a point in time that customers ask for."),
    "wal": ("upkeep.wal", "Restore and prune the WAL that a receiver of a cell's stream has stored."),
    "alias": ("alias", "Print the nginx configuration of the alias, or keep it up to date."),
    "setup": ("setup.machine", "Prepare one machine for the whole service."),
    "units": ("setup.units", "Write the systemd units of the planes and the backups."),
    "health": ("health", "Ask a plane whether it is live, or ready."),
    "settings": ("settings", "List every setting with its default and meaning."),
}

_EXIT_CODES = """\b
Exit codes:
  0  success
  1  failure; the reason is one line on stderr
  2  invalid command line

Settings are environment variables: see `plainsql-server settings`.
"""


class _Commands(click.Group):
    """Imports each command of `_COMMANDS` when it is called, and prints a failure as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"plainsql_server.cli.{module}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and _COMMANDS.get(args[0], ("", ""))[0] == "planes":
            # Once it has started, a plane reloads on SIGHUP. Until then, the signal must not end it.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # click's own version would import every command to read its help.
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ServiceError as error:
            raise click.ClickException(_one_line(error.message, error.hint, error.internal_context)) from error
        except (SettingsError, DevError) as error:
            raise click.ClickException(_one_line(str(error))) from error


@click.command(cls=_Commands, epilog=_EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--environment-file", "environment_files", multiple=True, type=click.Path(dir_okay=False, path_type=Path),
    help="Read settings from a file of a systemd unit, such as /etc/plainsql/control.env; repeatable.",
)  # fmt: skip
@click.version_option(VERSION, prog_name="plainsql-server", message=f"%(prog)s %(version)s ({COMPILED_TEXT})")
def main(environment_files: tuple[Path, ...]) -> None:
    """Run and operate PlainSQL: SQL over plain HTTPS, on PostgreSQL."""
    for path in environment_files:
        load_environment_file(path)


def _one_line(*parts: str | None) -> str:
    # Operators may see the internal context. API callers never do.
    return " ".join(" ".join(part.split()) for part in parts if part)
