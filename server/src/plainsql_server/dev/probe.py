"""Whether a part that speaks HTTP on this machine answers.

Owns that one question. What a lasting silence means is for who starts the part.
"""

import http
import http.client
import ssl

HOST = "127.0.0.1"
_TIMEOUT_S = 1.0


def answers(port: int, trust: ssl.SSLContext | None) -> bool:
    """Whether GET /health?live is answered with 200, over TLS if there is somebody to trust."""
    connection = (
        http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_S)
        if trust is None
        else http.client.HTTPSConnection(HOST, port, timeout=_TIMEOUT_S, context=trust)
    )
    try:
        connection.request("GET", "/health?live")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        # Not listening yet, or not ours.
        return False
    finally:
        connection.close()
