"""Checks whether an HTTP part on this machine answers."""

import http
import http.client
import ssl

HOST = "127.0.0.1"
_TIMEOUT_S = 1.0


def answers(port: int, ssl_context: ssl.SSLContext | None) -> bool:
    """Whether GET /health?live returns 200. Uses TLS if `ssl_context` is given."""
    connection = (
        http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_S)
        if ssl_context is None
        else http.client.HTTPSConnection(HOST, port, timeout=_TIMEOUT_S, context=ssl_context)
    )
    try:
        connection.request("GET", "/health?live")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        # It is not listening yet, or is another program.
        return False
    finally:
        connection.close()
