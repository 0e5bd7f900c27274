"""GET /guides/{name}: the guides of the documentation, as pages.

They are the files in `pages/guides`, which are links to those in `docs`. A page is made when it is first asked for.
"""

import posixpath
from functools import cache
from importlib.resources import files

from plainsql_server.core.errors import AccessError
from plainsql_server.http.app.contract import Contract, Media, Parameter
from plainsql_server.http.app.etags import KNOWN_VERSION
from plainsql_server.http.app.kept import Kept
from plainsql_server.http.app.markdown import rendered
from plainsql_server.http.app.routes import Route, open_route
from plainsql_server.http.app.web_pages import GUIDES, HTML, PAGE_HEADERS, guide_links, page_html
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response

_NAME = Parameter("name", "The guide.", {"type": "string", "enum": list(GUIDES)}, "http")
_CONTRACT = Contract(
    answers={200: Media(HTML, "The guide."), 304: None},
    errors=("route_not_found",),
    headers=(KNOWN_VERSION,),
    path=_NAME,
)


def guides_route() -> Route:
    return open_route("GET", "/guides/{name}", "Guides to the service", _get, contract=_CONTRACT)


async def _get(request: Request) -> Response:
    name = request.path_parameter
    if name not in GUIDES:
        raise AccessError(
            "route_not_found", f"There is no guide {name!r}.", hint=f"The guides are {', '.join(GUIDES)}."
        )
    return _page(name).response(request)


@cache
def _page(name: str) -> Kept:
    text = files("plainsql_server.http.app").joinpath("pages", "guides", f"{name}.md").read_text(encoding="utf-8")
    content = f'<p>Guides: {guide_links(" · ")} · <a href="/docs">Reference</a></p>\n{rendered(text, _link)}'
    body = page_html(f"PlainSQL: {GUIDES[name]}", content).encode()
    return Kept(body, f"{HTML}; charset=utf-8".encode(), PAGE_HEADERS)


def _link(target: str) -> str | None:
    """The address for a link in the documentation: another guide, a heading, another site; None for other files."""
    path, hash_mark, heading = target.partition("#")
    if not path or "://" in path:
        return target
    name = posixpath.basename(path).removesuffix(".md")
    return f"/guides/{name}{hash_mark}{heading}" if path.endswith(".md") and name in GUIDES else None
