"""`plainsql-server cell extensions`: show and change the extensions that customers may create on a cell."""

from dataclasses import dataclass

import click

from plainsql_server.cli.output import json_option, print_records, remark
from plainsql_server.cli.running import with_directory
from plainsql_server.control_plane import cells
from plainsql_server.engine.admin.extensions import EXTENSIONS, AllowedExtension


@dataclass(frozen=True, slots=True)
class _ListedExtension:
    """An extension on the list, and whether customers can create it."""

    name: str
    version: str | None
    state: str

    @classmethod
    def of(cls, extension: AllowedExtension) -> "_ListedExtension":
        untrusted = "not trusted" if extension.version else "not installed"
        return cls(extension.name, extension.version, "offered" if extension.is_offered else untrusted)


@click.command("extensions")
@click.argument("name", metavar="NAME-OR-ID")
@click.option("--allow", multiple=True, metavar="EXTENSION", help="Add an extension to the list; repeatable.")
@click.option("--refuse", multiple=True, metavar="EXTENSION", help="Remove one from the list; repeatable.")
@click.option("--default", "reset", is_flag=True, help="Restore the default list.")
@json_option
def extensions_command(
    *, name: str, allow: tuple[str, ...], refuse: tuple[str, ...], reset: bool, as_json: bool
) -> None:
    """Show the extensions that customers may create on a cell, or change the list.

    A change applies at once to all databases of the cell. Extensions that a database already has stay. Customers can
    create an extension if it is on the list, installed on the cell's machines, and trusted by PostgreSQL.
    """
    if reset and (allow or refuse):
        raise click.UsageError("Use --default alone.")
    if reset or allow or refuse:
        listed = with_directory(
            lambda directory: cells.change_extensions(directory, name, allow=allow, refuse=refuse, reset=reset)
        )
        unknown = sorted(set(allow) - set(EXTENSIONS))
        if unknown:
            remark(f"Not reviewed for cells that customers share: {', '.join(unknown)}. See docs/security.md.")
    else:
        listed = with_directory(lambda directory: cells.extensions_of(directory, name))
    print_records([_ListedExtension.of(each) for each in listed], ["name", "version", "state"], as_json=as_json)
