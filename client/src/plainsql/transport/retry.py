"""Retries: which requests are repeated, for how long, and which error is raised if no response arrives.

Only requests that are safe to repeat are repeated: reads, and writes with an idempotency key. After a lost response, a
later attempt that is rejected does not prove that nothing was executed; the error then says so.
"""

import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from plainsql.errors import NetworkError, ServiceError, service_error
from plainsql.transport.wire import Lost, NotSent, Request, Response, Send, Sleep, Steps
from plainsql.values import decode_json

# The service keeps the deadline in the request. Its response needs some time to arrive.
GRACE_S = 5.0
_FIRST_DELAY_S = 0.02
_DELAY_S_MAX = 2.0
# The service never sends 502 or 504. They mean that a proxy got no response from it.
_OF_PROXIES = frozenset([502, 503, 504])
_RETRIED = _OF_PROXIES | {409, 429}


def exchange(
    request: Request,
    timeout_s: float,
    *,
    safe: bool,
    as_stream: bool = False,
    notice: Callable[[str], None] | None = None,
    rate_limit_wait_s: float | None = None,
) -> Steps[Response]:
    """Sends a request, and repeats it if that is safe, until the timeout.

    Calls `notice`, or logs a warning, before the first retry if there is no service, and each time that a rate limit is
    reached. All waits for a rate limit together take at most `rate_limit_wait_s`.
    """
    notice = notice or _log
    end = time.monotonic() + timeout_s
    left_s = timeout_s if rate_limit_wait_s is None else rate_limit_wait_s
    delay = _FIRST_DELAY_S
    was_lost = is_announced = False
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
        rest_s = end - time.monotonic()
        # The last attempt is at the end, unless the service asks for a longer wait.
        pause = None if wait is None else max(wait, min(rest_s, delay * (0.5 + os.urandom(1)[0] / 512)))
        if pause is None or rest_s <= 0 or pause > rest_s:
            return (yield from _end(request, response, failure, was_lost=was_lost))
        if response is not None and response.status == 429:
            left_s -= pause
            if left_s < 0:
                return (yield from _end(request, response, failure, was_lost=was_lost))
            notice(f"Rate limit reached, retrying in {math.ceil(pause)} s.")
        if not is_announced and (reason := _absence(response, failure)) is not None:
            notice(f"{reason} Retrying for up to {math.ceil(rest_s)} s.")
            is_announced = True
        was_lost = was_lost or (response is not None and _outcome_of(response) == "unknown")
        yield Sleep(pause)
        delay = min(delay * 2, _DELAY_S_MAX)


def _absence(response: Response | None, failure: NotSent | Lost | None) -> str | None:
    """Why there seems to be no service; None if it answers, or if it may only have closed a connection."""
    if response is not None and response.status in _OF_PROXIES and not _error_in(response):
        return _proxy_failure(response)
    return str(failure) if isinstance(failure, NotSent) else None


def _proxy_failure(response: Response) -> str:
    return f"A proxy responded with status {response.status}."


def _log(message: str) -> None:
    import logging  # noqa: PLC0415  # slow to import, and seldom needed

    logging.getLogger("plainsql").warning(message)


def _end(
    request: Request, response: Response | None, failure: NotSent | Lost | None, *, was_lost: bool
) -> Steps[Response]:
    """Returns the response, or raises the error, after the last attempt."""
    key = request.idempotency_key
    if response is not None:
        if key is None or not _leaves_doubt(response, was_lost=was_lost):
            return response
        message = _error_in(response).get("message", _proxy_failure(response))
        failure = Lost(f"A response was lost; the next attempt failed: {message}" if was_lost else message)
        was_lost = True
    assert failure is not None
    if not was_lost:
        raise not_executed(failure, key)
    if key is None:
        raise NetworkError(f"{failure} It is unknown whether the request was executed.", outcome="unknown")
    if (yield from _is_committed(request, key)):
        message = f"{failure} The write was committed. To get its response, repeat the request with the same key."
        raise NetworkError(message, outcome="committed", idempotency_key=key)
    # An attempt may still be in transit: "not executed yet" does not mean "never executed".
    message = f"{failure} It is unknown whether the write was executed. Check later with request_outcome() and its key."
    raise NetworkError(message, outcome="unknown", idempotency_key=key)


def not_executed(failure: NotSent | Lost, key: str | None = None) -> NetworkError:
    """The error for a request that was not executed."""
    is_untrusted = isinstance(failure, NotSent) and failure.is_untrusted
    return NetworkError(str(failure), outcome="not_executed", idempotency_key=key, is_untrusted=is_untrusted)


def _is_committed(request: Request, key: str) -> Steps[bool]:
    """Asks the service whether the write was committed. Returns False if it does not answer."""
    from urllib.parse import quote  # noqa: PLC0415  # slow to import, and seldom needed

    database = json.loads(request.body).get("database")
    headers = (("X-Database", database),) if database else ()
    try:
        response = yield Send(Request("GET", f"/v1/requests/{quote(key, safe='')}", headers), GRACE_S)
        return bool(answer_of(response)["request"]["outcome"] == "committed")
    except (NotSent, Lost, ServiceError):
        return False


def _error_in(response: Response) -> dict[str, Any]:
    """The error object of a response; empty if there is none, as in a proxy's response."""
    try:
        error = json.loads(response.body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _outcome_of(response: Response) -> str | None:
    """The outcome of this attempt according to its response; None if it succeeded."""
    if response.source is not None:
        return None
    error = _error_in(response)
    if response.status < 300 and not error:
        return None
    return str(error.get("outcome") or "unknown")


def _leaves_doubt(response: Response, *, was_lost: bool) -> bool:
    """Whether an earlier attempt may have executed the write although this last response is an error.

    If this attempt ran and was rolled back, there is no doubt: it would have found the earlier attempt's record.
    """
    if response.status >= 500 and not _error_in(response):
        return True
    return was_lost and _outcome_of(response) == "not_executed"


def _wait_before_retry(response: Response, *, safe: bool, was_lost: bool) -> float | None:
    """How long to wait before repeating the request, or None to return this response."""
    if response.status not in _RETRIED:
        return None
    error = _error_in(response)
    if response.status == 409:
        # Our own earlier attempt is still running. Its response can be fetched when it is done.
        return 0.05 if was_lost and error.get("code") == "request_in_progress" else None
    if not safe and error.get("outcome") != "not_executed":
        return None
    if response.status == 503 and not safe and not error.get("retryable"):
        return None
    wait_ms = error.get("retry_after_ms")
    return float(wait_ms) / 1000 if wait_ms is not None else _seconds(response.headers.get("retry-after", "1"))


def _seconds(text: str) -> float:
    """A Retry-After header in seconds. A date is read as one second."""
    return float(text) if text.isdecimal() else 1.0


def answer_of(response: Response) -> Any:
    """The content of a response. Raises ServiceError if it is an error."""
    try:
        answer = decode_json(response.body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        message = f"The response (status {response.status}) isn't a JSON object."
        failure = {"error": {"code": "no_json", "message": message, "outcome": "unknown"}}
        raise service_error(failure, status=response.status, request_id=response.headers.get("x-request-id"))
    if response.status < 300 and answer.get("success", True):
        return answer
    if not answer.get("error"):
        message = "The service returned an error without a reason."
        answer["error"] = {"code": f"status_{response.status}", "message": message}
    raise service_error(answer, status=response.status, request_id=answer.get("request_id"))
