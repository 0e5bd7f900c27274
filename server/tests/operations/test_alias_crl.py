"""The alias and revoked certificates: a real nginx before a server whose certificate `plainsql-server pki` issued."""

import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.dev.alias import write_config
from plainsql_server.dev.ports import free_port
from plainsql_server.operations.files.alias import Alias
from server.tests import plain_http
from server.tests.alias import CONTROL_URL, running_nginx
from server.tests.pki_cell import Pki


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def data_plane(folder: Path) -> Iterator[int]:
    """The port of a server with the certificate in this folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def status_through_alias(upstream_port: int, trusted: Path) -> int:
    """What a client gets from an nginx that was started with these files."""
    with tempfile.TemporaryDirectory(prefix="plainsql-alias-") as folder:
        port = free_port()
        alias = Alias(
            [f"127.0.0.1:{port}"], [f"127.0.0.1:{upstream_port}"], CONTROL_URL,
            upstream_ca_file=trusted / "servers.crt", upstream_crl_file=trusted / "servers.crl",
        )  # fmt: skip
        write_config(Path(folder), alias)
        with running_nginx(Path(folder), port):
            return plain_http.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code


def test_nginx_refuses_a_data_plane_whose_certificate_was_revoked(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    assert CliRunner().invoke(main, ["pki", "init", str(tmp_path / "pki")]).exit_code == 0
    for name in ("one", "two"):
        pki.issue(name, "--server", "localhost")
    with data_plane(tmp_path / "one") as one, data_plane(tmp_path / "two") as two:
        assert status_through_alias(one, tmp_path / "pki") == 200
        pki.run("revoke", "one")
        assert status_through_alias(one, tmp_path / "pki") in (502, 503)
        assert status_through_alias(two, tmp_path / "pki") == 200
