"""Pages for people who open the service in a browser: the start page, and the error for a path that does not exist.

    if wants_page(request):
        return start_page(answer)

Programs get JSON: a page is sent only if the Accept header prefers text/html.
"""

from collections.abc import Iterable
from html import escape
from typing import Protocol

from plainsql_server.core.errors import ServiceError
from plainsql_server.http.server.accept import preferred
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Header, Response

HTML = "text/html"
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A page loads nothing from other sites, and this forbids it, too.
PAGE_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY),
    (b"referrer-policy", b"no-referrer"),
)
# The same address has a page and JSON, so a cache must not mix them up.
VARY: Header = (b"vary", b"accept")
# The guides that are served, in the order in which pages list them.
GUIDES = {
    "http": "HTTP",
    "client": "Python and the command",
    "python": "Python reference",
    "javascript": "JavaScript",
    "neon": "The Neon driver",
    "mcp": "AI agents",
    "transactions": "Interactive transactions",
    "utilities": "Inspecting a database",
    "control": "Control plane",
}
# Lines on a blue ground.
_ICON = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAMAAAAoLQ9TAAAABlBMVEUUVrj///9SC4NOAAAAF0lEQV"
    "R42mNgoA5ghANcAtTTgk+AUgAAHmAANR9f0HYAAAAASUVORK5CYII="
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="{icon}">
<link rel="stylesheet" href="/docs/page.css">
</head>
<body>
{content}
</body>
</html>
"""


class ShownRoute(Protocol):
    """What the start page shows of a route."""

    method: str
    path: str
    purpose: str


class ShownService(Protocol):
    """What the start page shows of the service."""

    version: str
    data_url: str
    control_url: str
    alias_url: str | None

    @property
    def routes(self) -> Iterable[ShownRoute]:
        """The plane's routes."""


def wants_page(request: Request) -> bool:
    """Whether a browser asks."""
    if request.method not in ("GET", "HEAD"):
        return False
    return preferred(request.headers.get(b"accept"), (HTML.encode(),), must=False) is not None


def start_page(shown: ShownService) -> Response:
    """The start page."""
    hosts = [("data plane", shown.data_url), ("control plane", shown.control_url), ("alias", shown.alias_url)]
    url = escape(shown.data_url)
    content = f"""<h1>PlainSQL {escape(shown.version)}</h1>
<p>SQL over plain HTTPS, on PostgreSQL. <a href="/docs">Read about the routes of this host and try them</a>, or read
the guides: {guide_links(", ")}.</p>
<p><a href="{escape(shown.control_url)}/console">Open the web console</a> and sign in with an API key.</p>
<pre>curl -H "Authorization: Bearer $KEY" --json '{{"sql": "select 1 + 1 as two"}}' {url}/v1/query</pre>
<h2>Hosts</h2>
{_table((name, escape(address)) for name, address in hosts if address is not None)}
<h2>Routes of this host</h2>
{_table((f"<code>{each.method} {escape(each.path)}</code>", escape(each.purpose)) for each in shown.routes)}
<p>Programs get <a href="/openapi.json">an OpenAPI document</a>.</p>"""
    return _response(200, "PlainSQL", content)


def guide_links(separator: str) -> str:
    """Links to the guides."""
    return separator.join(f'<a href="/guides/{name}">{escape(title)}</a>' for name, title in GUIDES.items())


def not_found_page(error: ServiceError, response: Response, request_id: str) -> Response:
    """The page in the place of a JSON answer to a request for a path that does not exist."""
    content = f"""<h1>Not found</h1>
<p>{escape(error.message)}</p>
<p>{escape(error.hint or "")}</p>
<p><a href="/">Start page</a> · <a href="/docs">Reference</a></p>
<p><code>{escape(error.code)}</code>, request <code>{escape(request_id)}</code></p>"""
    page = _response(response.status, "Not found", content)
    page.headers += response.headers
    page.error_code = response.error_code
    return page


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><td>{left}</td><td>{right}</td></tr>\n" for left, right in rows) + "</table>"


def _response(status: int, title: str, content: str) -> Response:
    body = page_html(title, content).encode()
    return Response(status, body, [*PAGE_HEADERS, VARY], content_type=f"{HTML}; charset=utf-8".encode())


def page_html(title: str, content: str) -> str:
    """A page with this title. The content is HTML."""
    return _PAGE.format(title=escape(title), icon=_ICON, content=content)
