"""The Markdown of the guides as HTML."""

import pytest

from plainsql_server.http.app.markdown import rendered

pytestmark = pytest.mark.unit

TEXT = """# A `b` <c>

A line
and [`another`](x.md#y).

- one
  more
- two

  ```
  <x> | `y`
  ```

Then **bold** and *italic*, 2 * 3 * 4:
1. [left](out.md)

| a | b |
|---|---|
| 1 \\| 2 | <z> |
"""
HTML = (
    '<h1 id="a-b-c">A <code>b</code> &lt;c&gt;</h1>'
    '<p>A line and <a href="/x#y"><code>another</code></a>.</p>'
    "<ul><li>one more</li><li><p>two</p><pre>&lt;x&gt; | `y`</pre></li></ul>"
    "<p>Then <strong>bold</strong> and <em>italic</em>, 2 * 3 * 4:</p><ol><li>left</li></ol>"
    "<table><tr><th>a</th><th>b</th></tr><tr><td>1 | 2</td><td>&lt;z&gt;</td></tr></table>"
)


def test_everything_is_escaped_and_keeps_its_structure() -> None:
    links = {"x.md#y": "/x#y"}
    assert rendered(TEXT, links.get).replace("\n", "") == HTML


def test_the_address_of_a_link_cannot_end_its_attribute() -> None:
    shown = rendered("[a](x)", lambda _: '/?"><script>&').strip()
    assert shown == '<p><a href="/?&quot;&gt;&lt;script&gt;&amp;">a</a></p>'


def test_headings_have_names_of_their_own() -> None:
    assert [line.split('"')[1] for line in rendered("# a\n## a-1\n## a\n## a\n## b", str).splitlines()] == [
        "a", "a-1", "a-2", "a-3", "b",
    ]  # fmt: skip


def test_a_table_of_one_line_is_its_head() -> None:
    assert rendered("| a |", str).replace("\n", "") == "<table><tr><th>a</th></tr></table>"
