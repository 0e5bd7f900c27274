"""HTTP requests of `dev` to its own parts: whether one answers, and a session for the link to the web console.

Behind its `#`, which browsers don't send, the link has the token of a session that lives for some minutes. The console
takes it out of the address and exchanges it, by public routes, for a session of its own. Then it ends the first one, so
the link can't be used again. `console/src/api/control.ts` has that part.
"""

import http
import http.client
import json
import ssl

HOST = "127.0.0.1"
# Long enough to read the screen, and short for a secret on it.
LINK_LIFE_S = 600
_PROBE_TIMEOUT_S = 1.0
_TIMEOUT_S = 5.0


def answers(port: int, ssl_context: ssl.SSLContext | None) -> bool:
    """Whether GET /health?live returns 200. Uses TLS if `ssl_context` is given."""
    connection = _connection(port, ssl_context, _PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/health?live")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        # It is not listening yet, or is another program.
        return False
    finally:
        connection.close()


def new_session(port: int, ssl_context: ssl.SSLContext | None, key: str) -> str | None:
    """The token of a session of LINK_LIFE_S, which can't be extended; None if the control plane makes none."""
    connection = _connection(port, ssl_context, _TIMEOUT_S)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/session", json.dumps({"expires_in_seconds": LINK_LIFE_S}), headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.CREATED:
            return None
        return str(json.loads(response.read())["session"]["token"])
    except (OSError, http.client.HTTPException):
        # The link is a convenience: one can sign in with the key.
        return None
    finally:
        connection.close()


def _connection(port: int, ssl_context: ssl.SSLContext | None, timeout_s: float) -> http.client.HTTPConnection:
    if ssl_context is None:
        return http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    return http.client.HTTPSConnection(HOST, port, timeout=timeout_s, context=ssl_context)
