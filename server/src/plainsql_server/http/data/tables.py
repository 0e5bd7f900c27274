"""GET /tables: lists the tables of a database, with an ETag.

PostgreSQL produces the JSON of each table. This module passes it on without parsing it.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.tables import TableList, Tables
from plainsql_server.engine.execution.tables import Detail
from plainsql_server.http.app.etags import is_known
from plainsql_server.http.server.answers import RequestId, Success
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Header, Response

# Caches must revalidate their copy, and shared caches must not store it.
_ASK_AGAIN: Header = (b"cache-control", b"private, no-cache")


class TablesOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of GET /tables."""

    schema: Annotated[str | None, Meta(description="List only the tables of this schema.")] = None
    detail: Annotated[Literal["names", "columns", "full"], Meta(description="How much to return for each table.")] = (
        "full"
    )


class TableColumn(msgspec.Struct, kw_only=True):
    """A column of a table."""

    name: str
    type: str
    nullable: bool
    default: str | None
    primary_key: bool
    identity: Literal["always", "by default"] | None
    generated: str | None


class TableIndex(msgspec.Struct, kw_only=True):
    """An index of a table. `definition` is the statement that creates it."""

    name: str
    unique: bool
    primary: bool
    method: str
    definition: str


class ReferencedColumns(msgspec.Struct, kw_only=True):
    """The columns that a foreign key references."""

    schema: str
    table: str
    columns: list[str]


class TableForeignKey(msgspec.Struct, kw_only=True):
    """A foreign key of a table."""

    name: str
    columns: list[str]
    references: ReferencedColumns
    on_update: str
    on_delete: str


class TableEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A table or view. Fields beyond the requested detail are omitted."""

    schema: str
    name: str
    kind: Literal["table", "partitioned_table", "view", "materialized_view", "foreign_table"]
    row_estimate: int | UnsetType | None = UNSET
    size_bytes: int | UnsetType | None = UNSET
    columns: list[TableColumn] | UnsetType = UNSET
    indexes: list[TableIndex] | UnsetType = UNSET
    foreign_keys: list[TableForeignKey] | UnsetType = UNSET


class TablesAnswer(msgspec.Struct, kw_only=True):
    """The tables and views, sorted by name."""

    success: Success = True
    tables: list[TableEntry]
    truncated: Annotated[bool, Meta(description="Whether tables were left out because of your tier's row limit.")]
    request_id: RequestId


class TablesRoutes:
    """The handler of GET /tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def get(self, request: Request, principal: Principal) -> Response:
        options = request.options(TablesOptions)
        listed = await self._tables.list_(
            principal, request.header(b"x-database"), options.schema, Detail(options.detail),
            lambda version: is_known(request, version),
        )  # fmt: skip
        headers = [(b"etag", f'W/"{listed.version}"'.encode()), _ASK_AGAIN]
        if listed.tables is None:
            return Response(304, b"", headers=headers, queue_us=listed.queue_us, exec_us=listed.exec_us)
        return Response(
            200, _body(listed, listed.tables, request), headers=headers,
            queue_us=listed.queue_us, exec_us=listed.exec_us, row_count=len(listed.tables),
        )  # fmt: skip


def _body(listed: TableList, tables: list[bytes], request: Request) -> bytes:
    return b'{"success":true,"tables":[%b],"truncated":%b,"request_id":"%b"}' % (
        b",".join(tables), b"true" if listed.truncated else b"false", request.id.encode(),
    )  # fmt: skip
