"""A page for a browser to be on: empty, of an origin of its own; and where the programs are that read it.

Owns the little server that gives it.
"""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Programs for Node, with what they need named in package.json.
READERS = Path(__file__).resolve().parent / "readers"
NEON = Path(__file__).resolve().parent / "neon"


@contextmanager
def empty_page() -> Iterator[str]:
    """The address of the page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
