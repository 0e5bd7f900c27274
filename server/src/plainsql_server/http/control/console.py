"""GET /console, GET /console/ and GET /console/{name}: the web console, a page that uses the routes of both planes.

`make console` builds its files into `console_files/`, from the sources in `console/`. Without them, the page says how
to build it. Names of files contain a hash of their content, so browsers may keep them; the page itself is asked for
again. The page loads nothing from other sites, and may connect only to the two planes.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from urllib.parse import urlsplit

from plainsql_server.core.errors import AccessError
from plainsql_server.http.app.contract import Contract, Media, Parameter
from plainsql_server.http.app.etags import KNOWN_VERSION, is_known
from plainsql_server.http.app.health import Urls
from plainsql_server.http.app.kept import Kept
from plainsql_server.http.app.routes import Route, open_route
from plainsql_server.http.app.web_pages import HTML, PAGE_HEADERS, page_html
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Header, Response

PAGE = "index.html"
_TYPES = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
}
_COMPRESSED = ".gz"
_FILES: Traversable = files("plainsql_server.http.control").joinpath("console_files")
_ASK_AGAIN = b"no-cache"
_KEEP = b"public, max-age=31536000, immutable"
_NOT_BUILT = """<h1>The console is not built</h1>
<p>This server was installed without the files of the web console. In a checkout, run <code>make console</code>, which
needs npm, and load this page again. Packages that are built after that have the files, too.</p>
<p><a href="/">Start page</a> · <a href="/docs">Reference</a></p>"""
_FILE = Parameter("name", "The name of a file that the page asks for.", {"type": "string"}, "index.js")


@dataclass(frozen=True)
class _File:
    """A built file. It is stored compressed."""

    compressed: bytes
    content_type: bytes
    lifetime: bytes

    @cached_property
    def content(self) -> bytes:
        return gzip.decompress(self.compressed)

    @cached_property
    def version(self) -> str:
        return hashlib.sha256(self.compressed).hexdigest()[:32]


def is_built() -> bool:
    """Whether this installation has the console's files."""
    return PAGE in _built(_FILES)


class ConsoleRoutes:
    """The handlers of the console's routes."""

    def __init__(self, urls: Urls, folder: Traversable | None = None) -> None:
        self._folder = folder or _FILES
        self._files = _built(self._folder)
        self._headers = console_headers(urls)

    def routes(self) -> list[Route]:
        page = Contract(
            answers={200: Media(HTML, "The console."), 304: None}, errors=(), headers=(KNOWN_VERSION,)
        )  # fmt: skip
        file = Contract(
            answers={200: Media("text/javascript", "The file."), 304: None},
            errors=("route_not_found",),
            headers=(KNOWN_VERSION,),
            path=_FILE,
        )
        return [
            open_route("GET", "/console", "Web console", self.get_page, contract=page),
            open_route("GET", "/console/", "Web console, with a slash", self.get_page, contract=page),
            open_route("GET", "/console/{name}", "Files of the web console", self.get_file, contract=file),
        ]

    async def get_page(self, request: Request) -> Response:
        if PAGE not in self._files:
            # It may have been built since.
            self._files = _built(self._folder)
        page = self._files.get(PAGE)
        return _not_built().response(request) if page is None else self._answer(request, page)

    async def get_file(self, request: Request) -> Response:
        found = self._files.get(request.path_parameter)
        if found is None:
            raise AccessError("route_not_found", "The console has no such file.", hint="Load /console again.")
        return self._answer(request, found)

    def _answer(self, request: Request, file: _File) -> Response:
        is_compressed = _takes_gzip(request)
        version = f"{file.version}-gzip" if is_compressed else file.version
        headers = [
            *self._headers,
            (b"cache-control", file.lifetime),
            (b"etag", f'"{version}"'.encode()),
            (b"vary", b"accept-encoding"),
        ]
        if is_known(request, version):
            return Response(304, b"", headers)
        if is_compressed:
            headers.append((b"content-encoding", b"gzip"))
        body = file.compressed if is_compressed else file.content
        return Response(200, body, headers, content_type=file.content_type)


def console_headers(urls: Urls) -> list[Header]:
    """The security headers of the page and its files. A worker is bound by those of its own file."""
    data = urlsplit(urls.data_url)
    # Without the data plane's address, the page can reach its own plane only.
    data_plane = f" {data.scheme}://{data.netloc}" if data.netloc else ""
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; worker-src 'self'; img-src data:;"
        f" connect-src 'self'{data_plane};"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    ]


def _built(folder: Traversable) -> Mapping[str, _File]:
    """What `make console` has built, by name."""
    found: dict[str, _File] = {}
    for source in folder.iterdir() if folder.is_dir() else ():
        name = source.name.removesuffix(_COMPRESSED)
        content_type = _TYPES.get(name.rpartition(".")[2])
        if content_type is not None and name != source.name:
            # Read at once: the files of an upgrade under a running server are not those of its page.
            found[name] = _File(source.read_bytes(), content_type, _ASK_AGAIN if name == PAGE else _KEEP)
    return found


def _not_built() -> Kept:
    body = page_html("PlainSQL console", _NOT_BUILT).encode()
    return Kept(body, f"{HTML}; charset=utf-8".encode(), PAGE_HEADERS)


def _takes_gzip(request: Request) -> bool:
    for each in (request.header(b"accept-encoding") or "").split(","):
        coding, _, quality = each.partition(";")
        if coding.strip().lower() == "gzip":
            return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
