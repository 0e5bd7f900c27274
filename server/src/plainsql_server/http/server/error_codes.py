"""Every code that an answer's `error.code` may have, beside the engine's own: its class, and when you meet it.

Owns the list. A test compares it with the errors that the source raises, so that neither knows one that the other
does not. Refuses statuses: `errors.py` has those.
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
    """A code's class, which decides the status, and a sentence for the reference."""

    kind: type[ServiceError]
    when: str


CODES: dict[str, Code] = {
    # The request as such.
    "malformed_request": Code(RequestError, "The request, its JSON or a field of it does not fit."),
    "invalid_option": Code(RequestError, "The query string or the cursor does not fit."),
    "request_timeout": Code(RequestError, "The body did not come in time; the connection is closed."),
    "request_too_large": Code(RequestError, "The body is over the limit."),
    "unsupported_content_type": Code(RequestError, "The body is not of the type that the route takes."),
    "unsupported_content_encoding": Code(RequestError, "The body is compressed."),
    "route_not_found": Code(AccessError, "There is no such route."),
    "method_not_allowed": Code(RequestError, "The route exists for another method."),
    # The caller.
    "unauthenticated": Code(AccessError, "No key or session, or one that is not valid."),
    "forbidden": Code(AccessError, "The key or session may not do this."),
    "rate_limited": Code(LimitError, "The organization's requests of this minute are used up."),
    # Databases.
    "database_not_found": Code(AccessError, "There is no such database, or not for you."),
    "database_suspended": Code(AccessError, "The operator suspended the database."),
    "database_not_ready": Code(EngineError, "The database is being created, or its creation failed."),
    "database_limit": Code(LimitError, "The tier allows no more databases."),
    "no_active_cell": Code(EngineError, "No cell takes new databases."),
    "wrong_state": Code(ConflictError, "The database's state does not allow it, or it changed meanwhile."),
    "name_taken": Code(ConflictError, "A database or organization has that name."),
    "invalid_name": Code(RequestError, "That cannot be a name."),
    # Keys, sessions and the organization.
    "no_scopes": Code(RequestError, "The list of scopes is empty."),
    "invalid_expiry": Code(RequestError, "The expiry is past, too far away or without a time zone."),
    "key_not_found": Code(AccessError, "There is no such key, or not for you."),
    "key_not_active": Code(ConflictError, "The key is revoked or has expired."),
    "key_replaced": Code(ConflictError, "The key was rotated before."),
    "key_limit": Code(LimitError, "The organization has as many keys that work as it may."),
    "session_limit": Code(LimitError, "The organization has as many sessions as it may."),
    "organization_not_found": Code(AccessError, "Your organization is gone."),
    # Statements and transactions.
    "statement_too_large": Code(RequestError, "The SQL is over the tier's bytes."),
    "empty_statement": Code(RequestError, "There is no statement in the text."),
    "multiple_statements": Code(RequestError, "There is more than one statement in the text."),
    "transaction_control": Code(RequestError, "BEGIN, COMMIT and their kin have no place in a request."),
    "notification": Code(RequestError, "LISTEN, UNLISTEN and NOTIFY have no place in a request."),
    "copy": Code(RequestError, "COPY has no place in a request."),
    "wrong_parameter_count": Code(RequestError, "The statement takes another number of parameters."),
    "too_many_parameters": Code(RequestError, "More parameters than the engine takes."),
    "invalid_parameter": Code(RequestError, "A parameter cannot be of its type."),
    "null_character": Code(RequestError, "Text cannot contain the character NUL."),
    "empty_transaction": Code(RequestError, "The transaction has no statements."),
    "too_many_statements": Code(RequestError, "The transaction has more statements than the tier allows."),
    "too_many_databases": Code(RequestError, "The transaction spans more databases than one may."),
    "invalid_reference": Code(RequestError, "A reference is not of the form 0.rows.0.name."),
    "reference_failed": Code(StatementError, "A reference leads nowhere; everything was rolled back."),
    "expectation_failed": Code(StatementError, "`expect` did not hold; everything was rolled back."),
    "query_canceled": Code(StatementError, "The statement was cancelled."),
    "untranslatable_character": Code(StatementError, "A value cannot be told in UTF-8."),
    "statement_timeout": Code(LimitError, "The statement ran into its deadline."),
    "transaction_timed_out": Code(LimitError, "The transaction ran into its deadline."),
    "result_too_large": Code(LimitError, "The result is over the tier's bytes."),
    "connection_limit": Code(LimitError, "The process, or your address at it, has too many connections."),
    # Requests that are done once.
    "invalid_idempotency_key": Code(RequestError, "The Idempotency-Key is not 1 to 255 visible ASCII characters."),
    "idempotent_stream": Code(RequestError, "A request with an Idempotency-Key is not streamed."),
    "no_record": Code(RequestError, "The database was made before requests could be recorded."),
    "request_in_progress": Code(ConflictError, "A request with this idempotency key is running."),
    "idempotency_key_reused": Code(ConflictError, "The idempotency key was used with another request."),
    "request_not_found": Code(AccessError, "Nothing is known of that request."),
    # Looking into a database.
    "not_confirmed": Code(RequestError, "`confirm` is not the name of the database that is meant."),
    "reset_timed_out": Code(LimitError, "The reset took longer than a request may; send it again, and it goes on."),
    "capability_not_found": Code(AccessError, "There is no capability of that name."),
    "bench_running": Code(ConflictError, "A benchmark is running on the database."),
    "storage_failed": Code(EngineError, "The round trip to the storage failed; `steps` says where."),
    "too_few_turns": Code(LimitError, "It needs more connections at once than the process has for you."),
    # Parts that are away.
    "directory_unavailable": Code(EngineError, "The directory is away."),
    "engine_unavailable": Code(EngineError, "The database's cell is away."),
    "commit_delayed": Code(EngineError, "It is committed; a cell that is away will show it when it is back."),
    "connection_lost": Code(EngineError, "The cell went away while the statement ran; the outcome is unknown."),
    "overloaded": Code(LimitError, "There was no turn for it in time; nothing was run."),
    "shutting_down": Code(EngineError, "The process is being restarted."),
    "service_failure": Code(InternalError, "Our fault; the request id leads the operator to the cause."),
}

# What only operators meet, in commands and checks.
OPERATORS_CODES = frozenset(
    {
        "admin_role_too_weak", "already_there", "analyze_failed", "backup_damaged", "cell_not_found", "database_busy",
        "degraded", "directory_not_empty", "dump_failed", "engine_version_refused", "invalid_conninfo",
        "move_overtaken", "move_under_way", "not_a_backup", "not_their_cell", "pid_ambiguous", "program_missing",
        "restore_overtaken", "row_security_forced", "statement_not_found", "too_many_tables",
        "unknown_tier", "wrong_backup",
    }
)  # fmt: skip
