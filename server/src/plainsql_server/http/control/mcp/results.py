"""The results of tools: a summary in the service's own words, and data that is marked as untrusted.

Structured content has the same marks as the text, because clients may show either of them to a language model.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import mcp_types as types
import msgspec

from plainsql_server.core.errors import ServiceError
from plainsql_server.http.control.mcp.data_plane import Reply, ResultReply
from plainsql_server.http.control.mcp.untrusted import Wrapped
from plainsql_server.http.server.answers import Error
from plainsql_server.http.server.errors import error_object

# About 16,000 tokens: what one result may take of a conversation.
DATA_BYTES = 64 * 1024
_CODE = re.compile(r"[0-9A-Za-z_]{1,64}")


def result(summary: str, data: str | None = None, *, is_error: bool = False, **fields: Any) -> types.CallToolResult:
    """A result. `fields` are more of the output schema's; None counts as absent."""
    structured = {"summary": summary, **{name: value for name, value in fields.items() if value is not None}}
    text = summary
    if data is not None:
        wrapped = Wrapped.of(data)
        structured |= {"untrusted_data": wrapped.text, "boundary": wrapped.boundary}
        text = f"{summary}\n\n{wrapped.text}"
    if token := fields.get("confirmation_token"):
        text += f"\n\nconfirmation_token: {token}"
    if key := fields.get("idempotency_key"):
        text += f"\n\nidempotency_key: {key}"
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=structured,
        is_error=is_error,
    )


def failure(error: Error | ServiceError, advice: str = "", **fields: Any) -> types.CallToolResult:
    """The result of a call that failed. PostgreSQL's message may quote data, or be written by a function.

    `advice` follows the summary. `fields` are of the output schema.
    """
    shown = error_object(error) if isinstance(error, ServiceError) else error
    code = _CODE.fullmatch(shown.code)
    parts = [code[0] if code else "error", f"SQLSTATE {shown.sqlstate}" if shown.sqlstate else None, shown.outcome]
    summary = f"Failed: {', '.join(str(part) for part in parts if part)}."
    if shown.code == "read_only_sql_transaction":
        # The service's own hint is to use another key. Whether agents may write is for the user to say.
        summary += " This call can't write."
        shown = msgspec.structs.replace(shown, hint=None)
    names = ("message", "detail", "hint", "position", "statement_index", "schema", "table", "column", "constraint")
    found = {name: getattr(shown, name) for name in names if getattr(shown, name) is not None}
    return result(f"{summary}{advice}", json.dumps(found, ensure_ascii=False), is_error=True, **fields)


def shown_result(reply: ResultReply, left_bytes: int = DATA_BYTES) -> tuple[str, bool]:
    """The columns and rows of a result as JSON, and whether rows are missing, because there are too many bytes."""
    rows, is_cut = within(reply.rows, left_bytes)
    head = {"columns": reply.columns, "types": reply.types}
    notices = bytes(reply.notices)
    has_room = len(notices) < DATA_BYTES // 4
    more = f',"notices":{notices.decode()}' if notices != b"[]" and has_room else ""
    text = f'{json.dumps(head, ensure_ascii=False)[:-1]},"rows":[{",".join(rows)}]{more}}}'
    return text, is_cut or reply.truncated or not has_room


def shown_results(reply: Reply) -> tuple[str, bool]:
    """The results of a transaction as JSON, and whether something is missing."""
    left_bytes, shown, is_truncated = DATA_BYTES, [], False
    for each in reply.results:
        text, is_cut = shown_result(each, left_bytes)
        shown.append(f'{{"affected_rows":{each.affected_rows},"result":{text}}}')
        left_bytes = max(0, left_bytes - len(text))
        is_truncated = is_truncated or is_cut
    return f"[{','.join(shown)}]", is_truncated


def within(values: Iterable[msgspec.Raw], left_bytes: int) -> tuple[list[str], bool]:
    """As many of these JSON values as fit, and whether some don't."""
    found: list[str] = []
    for each in values:
        left_bytes -= len(bytes(each)) + 1
        if left_bytes < 0:
            return found, True
        found.append(bytes(each).decode())
    return found, False


def counted(number: int, thing: str) -> str:
    """Such as: 1 row, 2 rows."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
