"""Sending, and sending again: which request may be repeated, for how long, and what to tell when no answer came.

Owns the honesty about lost answers. Only what does no harm twice is sent twice: reads, and writes that carry an
idempotency key. Once an attempt was lost, that a later one was refused does not mean that nothing was done. Refuses to
know what a request is for.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

from plainsql.errors import NetworkError, ServiceError, service_error
from plainsql.values import decode_json
from plainsql.wire import Lost, NotSent, Request, Response, Send, Sleep, Steps

# The service keeps to the deadline that it is told; its answer needs some time to come.
GRACE_S = 5.0
_FIRST_DELAY_S = 0.02
_DELAY_S_MAX = 2.0
# 502 and 504 are never the service's: a proxy did not get its answer.
_RETRIED = frozenset([409, 429, 502, 503, 504])


def exchange(
    request: Request,
    timeout_s: float,
    *,
    safe: bool,
    as_stream: bool = False,
    notice: Callable[[str], None] | None = None,
) -> Steps[Response]:
    """Sends, and sends again what may be sent again, until the time is up. `notice` is told that nobody answers."""
    end = time.monotonic() + timeout_s
    delay = _FIRST_DELAY_S
    was_lost = False
    while True:
        failure: NotSent | Lost | None = None
        response: Response | None = None
        try:
            response = yield Send(request, max(0.001, end + GRACE_S - time.monotonic()), as_stream)
            wait = _wait_before_retry(response, safe=safe, was_lost=was_lost)
        except NotSent as error:
            failure, wait = error, None if error.is_final else 0.0
        except Lost as error:
            failure, wait, was_lost = error, 0.0 if safe else None, True
        pause = None if wait is None else max(wait, delay * (0.5 + os.urandom(1)[0] / 512))
        if pause is None or time.monotonic() + pause > end:
            return (yield from _end(request, response, failure, was_lost=was_lost))
        if notice is not None and isinstance(failure, NotSent):
            notice(f"{failure} Trying again for {max(1, round(end - time.monotonic()))} s.")
            notice = None
        was_lost = was_lost or (response is not None and _outcome_of(response) == "unknown")
        yield Sleep(pause)
        delay = min(delay * 2, _DELAY_S_MAX)


def _end(request: Request, response: Response | None, failure: Exception | None, *, was_lost: bool) -> Steps[Response]:
    """The answer, or the error, after the last attempt."""
    key = request.idempotency_key
    if response is not None:
        if key is None or not _leaves_doubt(response, was_lost=was_lost):
            return response
        said = _error_in(response).get("message", f"An answer with status {response.status} came, not the service's.")
        failure = Lost(f"An answer was lost, and then: {said}" if was_lost else said)
        was_lost = True
    if not was_lost:
        raise NetworkError(str(failure), outcome="not_executed", idempotency_key=key)
    if key is None:
        raise NetworkError(f"{failure} Whether it was done is not known.", outcome="unknown")
    if (yield from _is_committed(request, key)):
        said = f"{failure} It was done; sending the same request with its key again gives its answer."
        raise NetworkError(said, outcome="committed", idempotency_key=key)
    # What is under way may still arrive, so that it was not done yet does not mean that it was not done.
    said = f"{failure} Whether it was done is not known; request_outcome() with its key tells later."
    raise NetworkError(said, outcome="unknown", idempotency_key=key)


def _is_committed(request: Request, key: str) -> Steps[bool]:
    """If the service answers again, it knows what was done."""
    from urllib.parse import quote  # noqa: PLC0415  # slow to import, and seldom needed

    database = json.loads(request.body).get("database")
    headers = (("X-Database", database),) if database else ()
    try:
        response = yield Send(Request("GET", f"/v1/requests/{quote(key, safe='')}", headers), GRACE_S)
        return bool(answer_of(response)["request"]["outcome"] == "committed")
    except (NotSent, Lost, ServiceError):
        return False


def _error_in(response: Response) -> dict[str, Any]:
    """The error object of an answer; empty where it has none, as in the words of a proxy on the way."""
    try:
        error = json.loads(response.body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _outcome_of(response: Response) -> str | None:
    """What an answer says about its own attempt; None if that succeeded."""
    if response.source is not None:
        return None
    error = _error_in(response)
    if response.status < 300 and not error:
        return None
    return str(error.get("outcome") or "unknown")


def _leaves_doubt(response: Response, *, was_lost: bool) -> bool:
    """Whether a write may have been done although this, the last answer, is an error: by an earlier attempt.

    An attempt that was run and rolled back leaves none: it would have found the earlier one's record.
    """
    if response.status >= 500 and not _error_in(response):
        return True
    return was_lost and _outcome_of(response) == "not_executed"


def _wait_before_retry(response: Response, *, safe: bool, was_lost: bool) -> float | None:
    """How long to wait before the same request is sent again, or None if the answer is to be taken."""
    if response.status not in _RETRIED:
        return None
    error = _error_in(response)
    if response.status == 409:
        # Our own earlier attempt is still at work; its answer can be had afterwards.
        return 0.05 if was_lost and error.get("code") == "request_in_progress" else None
    if not safe and error.get("outcome") != "not_executed":
        return None
    if response.status == 503 and not safe and not error.get("retryable"):
        return None
    told = error.get("retry_after_ms")
    return float(told) / 1000 if told is not None else _seconds(response.headers.get("retry-after", "1"))


def _seconds(text: str) -> float:
    """A Retry-After; where it is a date, a second is as good."""
    return float(text) if text.isdecimal() else 1.0


def answer_of(response: Response) -> Any:
    """The content of an answer, or the error that it is."""
    try:
        answer = decode_json(response.body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        said = f"The answer with status {response.status} is no JSON object."
        fields = {"code": "no_json", "message": said, "outcome": "unknown"}
        raise service_error(fields, status=response.status, request_id=response.headers.get("x-request-id"))
    if response.status < 300 and answer.get("success", True):
        return answer
    fields = answer.get("error") or {"code": f"status_{response.status}", "message": "The service gave no reason."}
    raise service_error(fields, status=response.status, request_id=answer.get("request_id"))
