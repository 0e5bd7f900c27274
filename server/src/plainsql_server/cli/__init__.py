"""`plainsql-server`, the operator's command line: which commands there are, and what a failure looks like.

Owns the table of commands and the exit codes. A command is imported when it is called and not before: the
driver, Alembic and the web server take a second to import, which `--help` should not cost. This table is the
only place that imports by name. Each noun has its file here: they parse, call the rooms below and print.
"""

import importlib
from typing import Any

import click

from plainsql_server import KERNEL, VERSION
from plainsql_server.core.errors import ServiceError
from plainsql_server.dev.options import DevError
from plainsql_server.settings import SettingsError

# Command: its module in this package, and what `--help` says of it.
_COMMANDS = {
    "dev": ("dev", "Run the whole service on this machine, in a folder of yours."),
    "data": ("planes", "Run the data plane."),
    "control": ("planes", "Run the control plane."),
    "migrate": ("migrate", "Create the directory's tables, or bring them up to date."),
    "org": ("org", "Organizations: create, list."),
    "key": ("key", "API keys: create, list, revoke."),
    "cell": ("cell.commands", "Cells, the PostgreSQL clusters that hold databases: add, set, list, guard."),
    "database": ("database", "Customers' databases: create, list, move, suspend, resume."),
    "doctor": ("doctor", "Check every part of the service, and say what to do about what is wrong."),
    "status": ("status", "The state of cells, databases, connections, queues, replication and planes."),
    "top": ("top", "The statements that run now, by organization; cancel one."),
    "upgrade": ("upgrade", "Bring the directory and the cells up to this version, or say what that would change."),
    "backup": ("backup", "Write a backup of a database or of the directory."),
    "restore": ("restore", "Restore a backup, beside what is there or in its place."),
    "alias": ("alias", "Print the alias' nginx configuration."),
    "settings": ("settings", "Every setting, with its default and what it does."),
}

_EXIT_CODES = """\b
Exit codes:
  0  done
  1  it failed; the reason is one line on stderr
  2  the command line is wrong

Settings come from the environment: see `plainsql-server settings`.
"""


class _Commands(click.Group):
    """The commands of `_COMMANDS`, imported when called; their failures as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"plainsql_server.cli.{module}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # click's own would import every command to ask for its help.
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
@click.version_option(VERSION, prog_name="plainsql-server", message=f"%(prog)s %(version)s ({KERNEL})")
def main() -> None:
    """PlainSQL: SQL over plain HTTPS, on PostgreSQL. This command runs and looks after the service."""


def _one_line(*parts: str | None) -> str:
    # An operator may see the internal context, which callers of the service never do.
    return " ".join(" ".join(part.split()) for part in parts if part)
