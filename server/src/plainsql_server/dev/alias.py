"""The alias part: nginx in front of the data plane, as in production.

If nginx is not installed, `dev` runs without this part.
"""

import os
import shutil
from pathlib import Path
from signal import Signals as Signal

from plainsql_server.dev.folder import write_public
from plainsql_server.dev.local_http import HOST, answers
from plainsql_server.dev.parts import Part
from plainsql_server.dev.processes import Launcher
from plainsql_server.dev.service import Addresses
from plainsql_server.operations.files.alias import Alias, TlsFiles, alias_config

MISSING = "nginx isn't installed; running without the alias. To install it: apt install nginx-light"

# nginx runs as one foreground process, so it ends with `dev`. It writes only to its own folder.
_MAIN = """\
daemon off;
master_process off;
worker_rlimit_nofile 8192;
pid "{folder}/nginx.pid";
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    client_body_temp_path "{folder}/client_body";
    proxy_temp_path "{folder}/proxy";
    fastcgi_temp_path "{folder}/unused";
    uwsgi_temp_path "{folder}/unused";
    scgi_temp_path "{folder}/unused";
    include "{folder}/alias.conf";
}}
"""


def find_nginx() -> str | None:
    """The nginx program, or None if it is not installed. Also searches sbin, which is not on every user's PATH."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which("nginx", path=f"{path}{os.pathsep}{path.replace('/bin', '/sbin')}")


def nginx_command(program: str, folder: Path) -> list[str]:
    """The command that runs nginx with the configuration in a folder."""
    return [program, "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def write_config(folder: Path, alias: Alias) -> None:
    """Writes the configuration of an nginx that serves only this alias."""
    folder.mkdir(mode=0o700, exist_ok=True)
    write_public(folder / "alias.conf", alias_config(alias))
    write_public(folder / "nginx.conf", _MAIN.format(folder=folder))


class AliasPart(Part):
    """nginx."""

    name = "alias"
    needs = frozenset({"data"})

    def __init__(self, launcher: Launcher, program: str, folder: Path, addresses: Addresses) -> None:
        self._launcher = launcher
        self._program = program
        self._folder = folder
        self._addresses = addresses
        self._ssl_context = addresses.ssl_context

    def start(self) -> None:
        files = self._addresses.certificates
        alias = Alias(
            listen=[f"{HOST}:{self._addresses.alias_port}"],
            upstreams=[f"{HOST}:{port}" for port in self._addresses.own_ports],
            control_url=self._addresses.control_url,
            tls=TlsFiles(files.cert_file, files.key_file) if files else None,
            upstream_ca_file=files.ca_file if files else None,
        )
        write_config(self._folder, alias)
        self.child = self._launcher.launch(
            self.name,
            nginx_command(self._program, self._folder),
            environment={"PATH": os.environ.get("PATH", os.defpath)},
            death_signal=Signal.SIGTERM,
        )

    def ready(self) -> bool:
        port = self._addresses.alias_port
        return port is not None and answers(port, self._ssl_context)

    def detail(self) -> str:
        return self._addresses.alias_url or ""
