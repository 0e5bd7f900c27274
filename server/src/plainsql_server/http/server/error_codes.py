"""Every value of `error.code` other than PostgreSQL's condition names: its class and its meaning.

A test compares this table with the errors that the source raises. The HTTP statuses are in `errors.py`.
"""

from typing import NamedTuple

from plainsql_server.core.errors import (
    AccessError,
    ConflictError,
    EngineError,
    InternalError,
    LimitError,
    RequestError,
    ServiceError,
    StatementError,
)


class Code(NamedTuple):
    """The class of a code, which determines its status, and its description in the reference."""

    kind: type[ServiceError]
    when: str


CODES: dict[str, Code] = {
    # The HTTP request.
    "malformed_request": Code(RequestError, "The request, its JSON or one of its fields is invalid."),
    "invalid_option": Code(RequestError, "A query parameter or the cursor is invalid."),
    "https_required": Code(RequestError, "Plain HTTP was sent to a port for HTTPS. Use a URL with https://."),
    "request_timeout": Code(RequestError, "The request did not arrive in time. The connection is closed."),
    "request_too_large": Code(RequestError, "The body exceeds the size limit."),
    "unsupported_content_type": Code(RequestError, "The route does not accept this content type."),
    "unsupported_content_encoding": Code(RequestError, "The body is compressed, which is not supported."),
    "route_not_found": Code(AccessError, "There is no such route."),
    "method_not_allowed": Code(RequestError, "The route exists, but not for this method."),
    # The caller.
    "unauthenticated": Code(AccessError, "The key or session is missing or invalid."),
    "forbidden": Code(AccessError, "The key or session lacks the scope for this, or is bound to another database."),
    "rate_limited": Code(LimitError, "The organization has exceeded its tier's rate limit."),
    # Databases.
    "database_not_found": Code(AccessError, "There is no such database, or you cannot access it."),
    "database_suspended": Code(AccessError, "The operator suspended the database."),
    "database_not_ready": Code(EngineError, "The database is being created, or its creation failed."),
    "database_limit": Code(LimitError, "The organization has reached its tier's database limit."),
    "database_busy": Code(
        EngineError, "The database can't be copied now: long statements, a backup, or another branch. Try again."
    ),
    "branch_limit": Code(
        LimitError, "The organization has made as many branches in 24 hours as its tier allows. Deleted ones count."
    ),
    "branch_too_large": Code(LimitError, "The database, or all your branches, are too large for another branch."),
    # Restores to a point in time. Those that are not the answer to a request are in `error` of a restore.
    "restore_unavailable": Code(EngineError, "Databases can't be restored to a point in time at the moment."),
    "restore_under_way": Code(ConflictError, "The database is being restored already."),
    "restore_limit": Code(LimitError, "The organization has too many restores, or databases that were replaced."),
    "restore_not_found": Code(AccessError, "There is no such restore, or you cannot access it."),
    "invalid_time": Code(RequestError, "The time is in the future, or has no time zone."),
    "not_in_archive": Code(RequestError, "At that time, the database was not there yet, or not complete."),
    "archive_too_short": Code(RequestError, "The archive does not reach to that time. The message says how far."),
    "restore_overtaken": Code(ConflictError, "The database was changed or deleted during the restore."),
    "restore_canceled": Code(ConflictError, "The database was deleted before the restore was done."),
    "restore_timed_out": Code(LimitError, "The restore took longer than the operator allows."),
    "restore_abandoned": Code(EngineError, "The restore was begun several times, and never ended."),
    "restore_failed": Code(EngineError, "The restore failed. The operator can find the cause by its id."),
    "no_active_cell": Code(EngineError, "No cell accepts new databases."),
    "creation_unavailable": Code(EngineError, "This server can't create databases right now."),
    "wrong_state": Code(ConflictError, "The database's state does not allow this, or changed in the meantime."),
    "name_taken": Code(ConflictError, "Another database of the organization has this name."),
    "invalid_name": Code(RequestError, "The name is invalid."),
    # Keys, sessions and the organization.
    "no_scopes": Code(RequestError, "The list of scopes is empty."),
    "invalid_expiry": Code(RequestError, "The expiry is in the past, too far in the future, or has no time zone."),
    "key_not_found": Code(AccessError, "There is no such key, or you cannot access it."),
    "key_not_active": Code(ConflictError, "The key is revoked or has expired."),
    "key_replaced": Code(ConflictError, "The key has already been rotated."),
    "key_limit": Code(LimitError, "The organization has reached its limit of active keys."),
    "session_limit": Code(LimitError, "The organization has reached its limit of sessions."),
    "organization_not_found": Code(AccessError, "The organization no longer exists."),
    "mcp_not_installed": Code(AccessError, "The service doesn't offer MCP."),
    # Statements and transactions.
    "statement_too_large": Code(RequestError, "The SQL exceeds the tier's size limit."),
    "empty_statement": Code(RequestError, "The text contains no statement."),
    "multiple_statements": Code(RequestError, "The text contains more than one statement."),
    "transaction_control": Code(
        RequestError, "BEGIN, COMMIT and similar statements are not allowed. Use POST /v1/transaction."
    ),
    "listen_not_supported": Code(RequestError, "LISTEN, UNLISTEN and NOTIFY are not supported."),
    "copy_not_supported": Code(RequestError, "COPY is not supported."),
    "wrong_parameter_count": Code(RequestError, "The number of parameters does not match the statement."),
    "too_many_parameters": Code(RequestError, "The statement has more parameters than PostgreSQL accepts."),
    "invalid_parameter": Code(RequestError, "A parameter's value does not fit its type."),
    "null_character": Code(RequestError, "Text cannot contain the NUL character."),
    "empty_transaction": Code(RequestError, "The transaction has no statements."),
    "stream_in_transaction": Code(RequestError, "A statement of a transaction has the streaming hint."),
    "too_many_statements": Code(RequestError, "The transaction has more statements than the tier allows."),
    "too_many_verified_reads": Code(RequestError, "The transaction has more verified reads than the tier allows."),
    "too_many_databases": Code(RequestError, "The transaction spans more databases than allowed."),
    "invalid_reference": Code(RequestError, "A reference does not have the form `0.rows.0.name`."),
    "reference_failed": Code(StatementError, "A reference points to a missing value. Everything was rolled back."),
    "expectation_failed": Code(StatementError, "A result did not match its `expect`. Everything was rolled back."),
    "volatile_read": Code(StatementError, "A result with an expected digest differs each time. All was rolled back."),
    "rehearsal_spans_databases": Code(RequestError, "Dry runs and digests need all statements in one database."),
    "query_canceled": Code(StatementError, "The statement was cancelled."),
    "untranslatable_character": Code(StatementError, "A value cannot be represented in UTF-8."),
    "statement_timeout": Code(LimitError, "The statement exceeded its deadline and was cancelled."),
    "transaction_deadline_exceeded": Code(LimitError, "The transaction exceeded its deadline and was cancelled."),
    "result_too_large": Code(LimitError, "The result exceeds the tier's size limit."),
    "connection_limit": Code(LimitError, "The process, or your address, has too many open connections."),
    "too_many_incomplete_requests": Code(
        LimitError, "Requests that are not complete hold too much memory of the process, and this one made way."
    ),
    # Idempotency.
    "invalid_idempotency_key": Code(RequestError, "The Idempotency-Key must be 1 to 255 visible ASCII characters."),
    "idempotent_stream": Code(RequestError, "A request with an Idempotency-Key cannot be streamed."),
    "idempotency_unavailable": Code(
        RequestError, "The database is too old for idempotency keys. Copy its data into a new one."
    ),
    "request_in_progress": Code(ConflictError, "A request with this idempotency key is still running."),
    "idempotency_key_reused": Code(ConflictError, "This idempotency key was used with a different request."),
    "request_not_found": Code(AccessError, "There is no record of this request."),
    # Diagnostics and reset.
    "not_confirmed": Code(RequestError, "`confirm` does not match the database's name."),
    "reset_timed_out": Code(LimitError, "The reset exceeded its deadline. Send it again to continue."),
    "capability_not_found": Code(AccessError, "There is no such capability."),
    "bench_running": Code(ConflictError, "A benchmark is already running on this database."),
    "storage_failed": Code(EngineError, "The storage round trip failed. `steps` shows where."),
    "too_many_participants": Code(LimitError, "The transaction needs more connections at once than you may have."),
    "too_few_connections": Code(LimitError, "This needs two connections at once, and you may have only one."),
    # Unavailable parts.
    "directory_unavailable": Code(EngineError, "The directory is unavailable."),
    "engine_unavailable": Code(EngineError, "The database's cell is unavailable."),
    "commit_delayed": Code(
        EngineError,
        "The transaction is committed, but a cell is unavailable. The changes appear there once it is back.",
    ),
    "connection_lost": Code(
        EngineError, "The connection to the cell was lost while the statement ran. The outcome is unknown."
    ),
    "overloaded": Code(LimitError, "No connection became available before the deadline. Nothing was run."),
    "shutting_down": Code(
        EngineError, "The process shut down before the request finished. `outcome` shows its effect."
    ),
    "service_failure": Code(InternalError, "An internal error. The operator can find the cause by the request id."),
}

# Codes used only by operator commands and health checks.
OPERATORS_CODES = frozenset(
    {
        "admin_role_too_weak", "already_known", "already_there", "analyze_failed", "archive_differs",
        "archive_failed", "backup_damaged", "backup_empty",
        "backups_of_others", "backups_running", "cell_in_use", "cell_not_found", "cell_not_lost",
        "cell_unavailable", "degraded", "directory_busy", "directory_not_empty", "dump_failed",
        "engine_version_refused", "extension_not_offered", "invalid_conninfo", "invalid_extension",
        "invalid_folder",
        "move_overtaken", "move_under_way", "no_database", "no_space", "not_a_backup", "not_adoptable",
        "not_the_owner", "not_their_cell",
        "organization_ambiguous", "pid_ambiguous", "pipe_failed", "program_missing", "purge_incomplete",
        "purge_overtaken", "read_failed", "restore_ended", "roles_missing", "row_security_forced",
        "secrets_key_missing", "statement_not_found", "tables_in_use", "too_many_tables", "unknown_tier",
        "wrong_backup",
    }
)  # fmt: skip
