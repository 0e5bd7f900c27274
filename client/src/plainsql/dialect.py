"""The SQLAlchemy dialect: `plainsql://k:svc_k_…@host/database`.

The key takes the place of the password, so SQLAlchemy masks it. Without a host, the settings of `plainsql.connect()`
apply. URL options: `tls=false`, `ca_file`, `autocommit`, `rehearse`, `timeout_s`,
`rate_limit_wait_s`.

Transactions work as everywhere: flushed changes can be read before the commit, writes return rows and counts, and
savepoints work. Nothing is held open in the service (see `plainsql.dbapi`); if what a session read has changed at the
commit, the commit fails with SQLSTATE 40001. With `?rehearse=lazy`, fewer requests are sent and errors appear later.
With `?autocommit=true`, each statement commits at once, and a rollback has no effect.

For asyncio, use `plainsql+asyncio://` with `create_async_engine`; it needs greenlet.
"""

import logging
import re
import sys
from decimal import Decimal
from types import ModuleType
from typing import Any

from sqlalchemy import URL, types
from sqlalchemy.dialects.postgresql import ARRAY as PG_ARRAY
from sqlalchemy.dialects.postgresql import BYTEA, CITEXT, ENUM, INTERVAL, JSON, JSONB, OID, REGCLASS
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDialect, PGExecutionContext
from sqlalchemy.dialects.postgresql.json import JSONPathType
from sqlalchemy.engine import processors
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.sql.visitors import iterate

from plainsql import dbapi
from plainsql.dbapi import NotSupportedError
from plainsql.dbapi.exceptions import CommittedError
from plainsql.values import encode_json

_NUMBERED = re.compile(r"\$[1-9]")


def _cast(kind: type[Any]) -> type[Any]:
    """The type with explicit casts on its parameters, so PostgreSQL does not have to infer their types."""
    return type(kind.__name__, (kind,), {"render_bind_cast": True, "__module__": __name__})


class _Numbers:
    """Numbers arrive as int, Decimal or float, depending on the column's type."""

    render_bind_cast = True

    def bind_processor(self, dialect: Any) -> None:  # noqa: ARG002  # SQLAlchemy's signature
        return None

    def result_processor(self, dialect: Any, coltype: Any) -> Any:  # noqa: ARG002  # SQLAlchemy's signature
        is_float = coltype in ("float4", "float8")
        if self.asdecimal:  # type: ignore[attr-defined]  # of the class beside this one
            scale = self._effective_decimal_return_scale  # type: ignore[attr-defined]
            return processors.to_decimal_processor_factory(Decimal, scale) if is_float else None
        return None if is_float else processors.to_float


class _Numeric(_Numbers, types.Numeric[Any]):
    """numeric."""


class _Float(_Numbers, types.Float[Any]):
    """float4 and float8."""


class _Interval(INTERVAL):
    """Intervals arrive as timedelta."""

    render_bind_cast = True

    @classmethod
    def adapt_emulated_to_native(cls, interval: Any, **kw: Any) -> "_Interval":  # type: ignore[override]  # noqa: ARG003
        return _Interval(precision=interval.second_precision)


class _ReadJSON:
    """JSON arrives as Python values. If the engine has its own deserializer, it is called with the JSON text."""

    render_bind_cast = True

    def result_processor(self, dialect: Any, coltype: Any) -> Any:  # noqa: ARG002  # SQLAlchemy's signature
        read = dialect._json_deserializer
        if read is None:
            return None
        return lambda value: None if value is None else read(encode_json(value))


class _JSON(_ReadJSON, JSON):
    """json."""


class _JSONB(_ReadJSON, JSONB):
    """jsonb."""


class _JSONPath(JSONPathType):
    """A JSON path, sent as PostgreSQL's array text."""


class _JSONIntIndex(types.JSON.JSONIntIndexType):
    """An index into a JSON array."""

    __visit_name__ = "json_int_index"
    render_bind_cast = True


class _JSONStrIndex(types.JSON.JSONStrIndexType):
    """A key in a JSON object."""

    __visit_name__ = "json_str_index"
    render_bind_cast = True


class _Compiler(PGCompiler):
    """Compiles PostgreSQL's SQL. JSON parameters are sent as text, written by SQLAlchemy's serializer."""

    def render_bind_cast(self, type_: Any, dbapi_type: Any, sqltext: str) -> str:
        cast: str = super().render_bind_cast(type_, dbapi_type, sqltext)  # type: ignore[no-untyped-call]
        return cast.replace("::", "::TEXT::", 1) if isinstance(dbapi_type, JSON) else cast


class _ExecutionContext(PGExecutionContext):
    """Uses a streaming cursor if the program asks for one with `stream_results` or `yield_per`."""

    def create_server_side_cursor(self) -> Any:
        cursor: Any = self._dbapi_connection.cursor()
        cursor.streams = True
        return cursor


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise dbapi.InterfaceError(f"In the URL, {name} must be true or false, not {value!r}.")
    return value.lower() == "true"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise dbapi.InterfaceError(f"In the URL, {name} must be {' or '.join(allowed)}, not {value!r}.")
    return value


def _seconds(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise dbapi.InterfaceError(f"In the URL, {name} must be a number, not {value!r}.") from error


def _has_placeholders(statement: str, parameters: Any, context: Any) -> bool:
    """Whether a program wrote this text itself, as with `exec_driver_sql` or pandas, with `%s` or `%(name)s`."""
    if not parameters or context is None or context.compiled is not None:
        return False
    return isinstance(parameters, dict) or not _NUMBERED.search(statement)


class PlainSQLDialect(PGDialect):
    """SQLAlchemy on PlainSQL."""

    driver = "plainsql"
    supports_statement_cache = True
    supports_server_side_cursors = True
    render_bind_cast = True
    default_paramstyle = "numeric_dollar"
    supports_native_json_deserialization = True
    # Send many rows in few statements, because a transaction is limited in its number of statements.
    use_insertmanyvalues = True
    # The service freezes inserts of up to 128 KiB of text.
    insertmanyvalues_max_parameters = 4_000
    # Without RETURNING, `executemany` of the DB-API sends many rows in few statements, and all of them in one request.
    use_insertmanyvalues_wo_returning = False
    statement_compiler = _Compiler
    execution_ctx_cls = _ExecutionContext
    default_isolation_level = "SERIALIZABLE"
    colspecs = {  # noqa: RUF012  # as in every dialect
        **PGDialect.colspecs,
        types.String: _cast(types.String),
        types.CHAR: _cast(types.CHAR),
        types.Integer: _cast(types.Integer),
        types.SmallInteger: _cast(types.SmallInteger),
        types.BigInteger: _cast(types.BigInteger),
        types.Boolean: _cast(types.Boolean),
        types.Date: _cast(types.Date),
        types.DateTime: _cast(types.DateTime),
        types.Time: _cast(types.Time),
        types.LargeBinary: _cast(BYTEA),
        types.Uuid: _cast(types.Uuid),
        types.Enum: _cast(ENUM),
        types.ARRAY: _cast(PG_ARRAY),
        types.Numeric: _Numeric,
        types.Float: _Float,
        types.Interval: _Interval,
        INTERVAL: _Interval,
        types.JSON: _JSON,
        JSON: _JSON,
        JSONB: _JSONB,
        types.JSON.JSONPathType: _JSONPath,
        types.JSON.JSONIntIndexType: _JSONIntIndex,
        types.JSON.JSONStrIndexType: _JSONStrIndex,
        OID: _cast(OID),
        REGCLASS: _cast(REGCLASS),
        CITEXT: CITEXT,
    }

    def __init__(self, **arguments: Any) -> None:
        # The DB-API module uses %s, but SQLAlchemy can produce $1, $2, … directly.
        super().__init__(**{"paramstyle": "numeric_dollar", **arguments})  # type: ignore[no-untyped-call]
        self._autocommit = self._on_connect_isolation_level == "AUTOCOMMIT"
        self._is_lazy = False

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        return dbapi

    @classmethod
    def get_async_dialect_cls(cls, url: URL) -> "type[PlainSQLDialect]":  # noqa: ARG003  # SQLAlchemy's signature
        from plainsql.asyncio_dialect import PlainSQLAsyncDialect  # noqa: PLC0415  # it imports this module

        return PlainSQLAsyncDialect

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        options = {name: str(value) for name, value in url.query.items()}
        if _truth("autocommit", options.pop("autocommit", "false")):
            self._autocommit = True
        arguments: dict[str, Any] = {"database": url.database or None, "autocommit": self._autocommit}
        arguments["rehearse"] = _one_of("rehearse", options.pop("rehearse", "eager"), ("eager", "lazy"))
        self._is_lazy = arguments["rehearse"] == "lazy"
        for name in ("timeout_s", "rate_limit_wait_s"):
            if name in options:
                arguments[name] = _seconds(name, options.pop(name))
        if "ca_file" in options:
            arguments["ca_file"] = options.pop("ca_file")
        scheme = "https" if _truth("tls", options.pop("tls", "true")) else "http"
        if scheme == "http":
            # It is what the URL asks for.
            arguments["insecure"] = True
        if options:
            raise dbapi.InterfaceError(f"The URL has an unknown option: {next(iter(options))}")
        if url.host:
            host = f"[{url.host}]" if ":" in url.host else url.host
            port = f":{url.port}" if url.port else ""
            arguments |= {"url": f"{scheme}://{host}{port}", "key": url.password}
        return [], arguments

    def connect(self, *arguments: Any, **settings: Any) -> Any:
        if "alembic.ddl.postgresql" in sys.modules:
            from plainsql.alembic_impl import register  # noqa: PLC0415  # it imports this module

            register()
        return super().connect(*arguments, **settings)

    def do_rollback(self, dbapi_connection: Any) -> None:
        """In autocommit mode, this has no effect. It must not raise an error, as the DB-API's does after a write.

        SQLAlchemy also calls it when a connection is closed without a commit, and after an error, which must reach the
        program.
        """
        try:
            super().do_rollback(dbapi_connection)  # type: ignore[no-untyped-call]
        except CommittedError as error:
            logging.getLogger("plainsql").info("Rollback without effect: %s", error)

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if _has_placeholders(statement, parameters, context):
            cursor.execute(statement, parameters)
        else:
            cursor.execute_numbered(statement, parameters or (), self._presumed_rows(context))

    def do_executemany(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if _has_placeholders(statement, parameters[0] if parameters else (), context):
            cursor.executemany(statement, parameters)
        else:
            cursor.executemany_numbered(statement, parameters, self._presumed_rows(context))

    def _presumed_rows(self, context: Any) -> int | None:
        """1 for the ORM's own UPDATE or DELETE of one row by its primary key, if rehearsals are to be saved.

        With a version column, the count says whether the row is still the same, so it must be real.
        """
        if not self._is_lazy or context is None or not (context.isupdate or context.isdelete):
            return None
        if "compiled_cache" not in context.execution_options:
            return None
        where = context.compiled.statement.whereclause
        found: list[Any] = [] if where is None else list(iterate(where))
        columns = [each for each in found if each.__visit_name__ == "column"]
        return 1 if columns and all(each.primary_key for each in columns) else None

    def do_execute_no_params(self, cursor: Any, statement: str, context: Any = None) -> None:  # noqa: ARG002
        cursor.execute_numbered(statement, ())

    def get_isolation_level_values(self, dbapi_conn: Any) -> list[IsolationLevel]:  # noqa: ARG002
        return ["SERIALIZABLE", "AUTOCOMMIT"]

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        dbapi_connection.autocommit = level == "AUTOCOMMIT"

    def get_isolation_level(self, dbapi_connection: Any) -> IsolationLevel:
        return "AUTOCOMMIT" if dbapi_connection.autocommit else "SERIALIZABLE"

    def get_default_isolation_level(self, dbapi_conn: Any) -> IsolationLevel:
        return self.get_isolation_level(dbapi_conn)

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        return bool(dbapi_conn.autocommit)

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:  # noqa: ARG002
        """No connection is open between calls, so none can be lost."""
        return False

    def do_ping(self, dbapi_connection: Any) -> bool:
        dbapi_connection.client.health()
        return True

    def do_begin_twophase(self, connection: Any, xid: Any) -> None:  # noqa: ARG002
        raise NotSupportedError("Two-phase transactions aren't supported.")
