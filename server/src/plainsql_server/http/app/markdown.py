"""Converts the Markdown of our guides to HTML: headings, paragraphs, lists, tables, code, links, bold and italics.

    html = rendered(markdown, link)

`link` gets the target of each link and returns its address, or None to leave only the text. Everything else is escaped.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape

Link = Callable[[str], str | None]

_INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\[(?P<text>(?:[^]`]|`[^`]*`)+)\]\((?P<target>[^)]+)\)|\*\*(?P<bold>[^*]+)\*\*"
    r"|\*(?P<italic>[^*\s](?:[^*]*[^*\s])?)\*"
)
_ITEM = re.compile(r"(?P<mark>-|\d+\.) +")
_CELLS = re.compile(r"(?<!\\)\|")


class _Page:
    """A page: where its links lead, and the names of its headings so far."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._anchors: set[str] = set()

    def new_anchor(self, heading: str) -> str:
        """The name of the next heading. As on GitHub, a second `close` is `close-1`."""
        first = name = anchor(heading)
        number = 0
        while name in self._anchors:
            number += 1
            name = f"{first}-{number}"
        self._anchors.add(name)
        return name


def rendered(markdown: str, link: Link) -> str:
    """The HTML of a text."""
    return "\n".join(_blocks(markdown.splitlines(), _Page(link)))


def anchor(heading: str) -> str:
    """The name of a heading in links, as on GitHub: `POST /v1/query` is `post-v1query`."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _blocks(lines: Sequence[str], page: _Page) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        end = _end(lines, at)
        block = lines[at:end]
        at = end
        if line.startswith("```"):
            yield f"<pre>{escape(chr(10).join(block[1:-1]))}</pre>"
        elif line.startswith("#"):
            marks, _, heading = line.partition(" ")
            yield f'<h{len(marks)} id="{escape(page.new_anchor(heading))}">{_inline(heading, page)}</h{len(marks)}>'
        elif line.startswith("|"):
            yield _table(block, page)
        elif _ITEM.match(line):
            yield _list(block, page)
        elif line.strip():
            yield f"<p>{_inline(' '.join(each.strip() for each in block), page)}</p>"


def _end(lines: Sequence[str], start: int) -> int:
    """Where the block that begins here ends."""
    first = lines[start]
    end = start + 1
    if first.startswith("```"):
        while end < len(lines) and not lines[end].startswith("```"):
            end += 1
        return min(end + 1, len(lines))
    if first.startswith("#") or not first.strip():
        return end
    is_list = _ITEM.match(first) is not None
    while end < len(lines) and not _begins_another(lines, end, is_list=is_list, is_table=first.startswith("|")):
        end += 1
    return end


def _begins_another(lines: Sequence[str], at: int, *, is_list: bool, is_table: bool) -> bool:
    line = lines[at]
    if is_list and (not line.strip() or not lines[at - 1].strip()):
        # After an empty line, a list goes on with an item or with an indented line.
        next_line = next((each for each in lines[at:] if each.strip()), "")
        return not next_line.startswith(" ") and not _ITEM.match(next_line)
    if is_list:
        return False
    if is_table:
        return not line.startswith("|")
    return not line.strip() or line.startswith(("```", "#", "|")) or _ITEM.match(line) is not None


def _list(lines: Sequence[str], page: _Page) -> str:
    items: list[list[str]] = []
    width = 0
    for line in lines:
        if match := _ITEM.match(line):
            width = match.end()
            items.append([line[width:]])
        else:
            items[-1].append(line[width:] if line[:width].isspace() else line)
    name = "ul" if lines[0].startswith("-") else "ol"
    return f"<{name}>{''.join(f'<li>{_item(each, page)}</li>' for each in items)}</{name}>"


def _item(lines: Sequence[str], page: _Page) -> str:
    blocks = list(_blocks(lines, page))
    return blocks[0].removeprefix("<p>").removesuffix("</p>") if len(blocks) == 1 else "\n".join(blocks)


def _table(lines: Sequence[str], page: _Page) -> str:
    head, *rows = [_CELLS.split(line.strip())[1:-1] for line in (lines[0], *lines[2:])]
    return f"<table>{_row(head, 'th', page)}{''.join(_row(row, 'td', page) for row in rows)}</table>"


def _row(cells: Sequence[str], name: str, page: _Page) -> str:
    shown = (_inline(cell.strip().replace("\\|", "|"), page) for cell in cells)
    return "<tr>" + "".join(f"<{name}>{cell}</{name}>" for cell in shown) + "</tr>\n"


def _inline(text: str, page: _Page) -> str:
    parts: list[str] = []
    at = 0
    for match in _INLINE.finditer(text):
        parts += [escape(text[at : match.start()]), _span(match, page)]
        at = match.end()
    return "".join((*parts, escape(text[at:])))


def _span(match: re.Match[str], page: _Page) -> str:
    if match["code"] is not None:
        return f"<code>{escape(match['code'])}</code>"
    if match["bold"] is not None:
        return f"<strong>{_inline(match['bold'], page)}</strong>"
    if match["italic"] is not None:
        return f"<em>{_inline(match['italic'], page)}</em>"
    text, address = _inline(match["text"], page), page.link(match["target"])
    return text if address is None else f'<a href="{escape(address)}">{text}</a>'
