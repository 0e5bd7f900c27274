"""Transactions that write: rehearsed first, then committed once the user has agreed.

    writing = Writing(data_plane, caller)
    result = await writing.run(arguments, database_id, Dialog.of(params, asks_user=True))

A rehearsal is a dry run: PostgreSQL runs the statements and rolls them back. The commit expects each statement to
change as many rows as it did then. A client that can ask its user does so; the agent can't answer for the user. With
other clients, the agent passes a token on.
"""

from typing import Any, NamedTuple

import mcp_types as types
import msgspec

from plainsql_server.core.clock import wall_s
from plainsql_server.core.errors import Outcome
from plainsql_server.http.control.mcp.confirmation import (
    LIFE_S,
    Confirmation,
    Holder,
    bound_to,
    issue,
    new_key,
    opened,
)
from plainsql_server.http.control.mcp.data_plane import DataPlane, Failed, Reply, Sent
from plainsql_server.http.control.mcp.refusal import Lost, Refused
from plainsql_server.http.control.mcp.results import counted, failure, result, shown_results
from plainsql_server.http.control.mcp.route import McpCaller
from plainsql_server.http.control.mcp.tools import TransactionArguments

# The name of the question in a client's dialog, and of the box that the user ticks.
_QUESTION = "confirmation"
_BOX = "commit"
# What fits a dialog. Nothing is ever cut: a user agrees to what is shown.
_SHOWN_CHARACTERS = 2_000
# Characters that Python takes for printable, and that are shown as nothing or as a blank: those of Unicode's property
# Default_Ignorable_Code_Point, and the Braille pattern without dots.
_BLANK = frozenset([
    0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, *range(0xFE00, 0xFE10), 0xFFA0,
    *range(0xE0100, 0xE01F0),
])  # fmt: skip
_UNKNOWN = (
    " It is unknown whether the transaction has taken effect. Don't rehearse it again: call request_outcome with the"
    " idempotency_key, or run_transaction with the same confirmation, which takes effect once."
)
# Another call with this confirmation may have been sent before, and its answer been lost.
_NOT_EXECUTED = (
    " This call wrote nothing. If an earlier one with the same confirmation had no answer, call request_outcome with"
    " the idempotency_key before you rehearse again."
)


class Dialog(NamedTuple):
    """Whether the client can ask its user, and what came back if it did."""

    asks_user: bool
    state: str | None
    answer: types.ElicitResult | None

    @classmethod
    def of(cls, params: types.CallToolRequestParams, *, asks_user: bool) -> "Dialog":
        answer = (params.input_responses or {}).get(_QUESTION)
        return cls(asks_user, params.request_state, answer if isinstance(answer, types.ElicitResult) else None)

    @property
    def is_agreed(self) -> bool:
        answer = self.answer
        return answer is not None and answer.action == "accept" and (answer.content or {}).get(_BOX) is True


class Writing:
    """The transactions of one caller who may write."""

    def __init__(self, data_plane: DataPlane, caller: McpCaller) -> None:
        self._data_plane = data_plane
        self._caller = caller

    async def run(
        self, arguments: TransactionArguments, database_id: str | None, dialog: Dialog
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Rehearses the transaction, or commits it if it is confirmed. Raises Refused and Failed."""
        bound = bound_to(msgspec.to_builtins(arguments.statements), database_id)
        token = arguments.confirmation_token
        holder: Holder = "agent" if dialog.answer is None else "client"
        if holder == "agent" and token is None:
            return await self._rehearse(arguments, database_id, bound, dialog)
        if holder == "client" and not dialog.is_agreed:
            return result("The user declined. Nothing was written.", outcome="declined")
        text = (dialog.state if holder == "client" else token) or ""
        return await self._commit(arguments, database_id, opened(self._caller.secret, bound, text, holder, wall_s()))

    async def _rehearse(
        self, arguments: TransactionArguments, database_id: str | None, bound: bytes, dialog: Dialog
    ) -> types.CallToolResult | types.InputRequiredResult:
        # Refused before anything runs if the user can't be shown all of it.
        statements = _shown(arguments) if dialog.asks_user else ""
        content = transaction_content(arguments, database_id) | {"dry_run": True}
        reply = await self._data_plane.post("/v1/transaction", self._sent(), content)
        holder: Holder = "client" if dialog.asks_user else "agent"
        affected = [each.affected_rows for each in reply.results]
        confirmation = Confirmation(holder, int(wall_s()) + LIFE_S, new_key(), affected)
        token = issue(self._caller.secret, bound, confirmation)
        if dialog.asks_user:
            return _question(statements, reply, token)
        data, is_truncated = shown_results(reply)
        summary = (
            f"Rehearsed and rolled back: {_counts(reply)}. Nothing has been written. Show this to the user. If the user"
            f" agrees, call run_transaction again within {LIFE_S // 60} minutes, with the same arguments and the"
            " confirmation_token."
        )
        return result(
            summary, data, truncated=is_truncated, outcome="rehearsed", confirmation_token=token,
            idempotency_key=confirmation.idempotency_key,
        )  # fmt: skip

    async def _commit(
        self, arguments: TransactionArguments, database_id: str | None, confirmation: Confirmation
    ) -> types.CallToolResult:
        content = transaction_content(arguments, database_id)
        for statement, count in zip(content["statements"], confirmation.affected_rows, strict=True):
            statement["expect"] = {"affected_rows": count}
        key = confirmation.idempotency_key
        try:
            reply = await self._data_plane.post("/v1/transaction", self._sent()._replace(idempotency_key=key), content)
        except Lost as error:
            return result(f"{error}{_UNKNOWN}", outcome="unknown", idempotency_key=key, is_error=True)
        except Failed as error:
            if error.error.outcome is Outcome.ROLLED_BACK:
                raise
            if error.error.outcome is Outcome.NOT_EXECUTED:
                return failure(error.error, _NOT_EXECUTED, idempotency_key=key)
            return failure(error.error, _UNKNOWN, outcome="unknown", idempotency_key=key)
        data, is_truncated = shown_results(reply)
        again = " It had been committed before, with the same confirmation; nothing was done again."
        summary = f"Committed: {_counts(reply)}.{again if reply.replayed else ''}"
        return result(summary, data, truncated=is_truncated, outcome="committed", idempotency_key=key)

    def _sent(self) -> Sent:
        return Sent(self._caller.secret, self._caller.request_id, self._caller.principal.organization_id)


def transaction_content(arguments: TransactionArguments, database_id: str | None) -> dict[str, Any]:
    """The body of POST /v1/transaction."""
    content: dict[str, Any] = {
        "statements": [{"sql": each.sql, "params": each.params} for each in arguments.statements],
        "row_format": "array",
        "timeout_ms": arguments.timeout_s * 1000,
    }
    return content if database_id is None else content | {"database": database_id}


def _counts(reply: Reply) -> str:
    """How many rows each statement changed."""
    each = (f"statement {at} changes {counted(one.affected_rows, 'row')}" for at, one in enumerate(reply.results, 1))
    return ", ".join(each)


def _shown(arguments: TransactionArguments) -> str:
    """All statements and values, as a dialog shows them. Raises Refused if they don't fit."""
    shown = "\n".join(
        f"{at}. {visible(each.sql)}" + (f"\n   values: {visible(str(each.params))}" if each.params else "")
        for at, each in enumerate(arguments.statements, 1)
    )
    if len(shown) > _SHOWN_CHARACTERS:
        raise Refused(
            f"The statements are too long to be shown to the user: they have {len(shown)} characters with their values,"
            f" and {_SHOWN_CHARACTERS} can be shown. Nothing was written. Send fewer or shorter statements."
        )
    return shown


def _question(statements: str, reply: Reply, token: str) -> types.InputRequiredResult:
    """What the client asks its user. The answer comes with the same call, sent again."""
    message = f"Commit this transaction?\n{statements}\nIn a rehearsal, {_counts(reply)}."
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {_BOX: {"type": "boolean", "title": "Commit", "default": False}},
        "required": [_BOX],
    }
    params = types.ElicitRequestFormParams(message=message, requested_schema=schema)
    return types.InputRequiredResult(
        input_requests={_QUESTION: types.ElicitRequest(params=params)}, request_state=token
    )


def visible(text: str) -> str:
    """The text on one line, with escapes for characters that could disguise it in a dialog.

    Such as a line break, which ends a comment, and those that change the direction or that no font shows.
    """
    return "".join(each if each.isprintable() and ord(each) not in _BLANK else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()
