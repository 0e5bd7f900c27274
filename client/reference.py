"""Generates docs/reference/python.md: the public names of the client, with their signatures and docstrings.

    python -m client.reference

A test checks that the page matches the source.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plainsql
from plainsql import control, dbapi, errors
from plainsql.transactions import Pending

PAGE = Path(__file__).parents[1] / "docs/reference/python.md"

_INTRODUCTION = """\
# Python reference

The public names of the package `plainsql`. The [client guide](../client.md) shows how to use them. `make reference`
generates this page from the docstrings; edit those, not this page.
"""
_ASYNC = """\
The same methods as `Client`. Await every method except `transaction` and `close`, and use `async for` with the methods
that return an iterator. `stream` returns an `AsyncStream`, and `transaction` an `AsyncTransaction`.
"""
# Used by other modules of the package, such as the command, but not meant for programs.
_INNER = {
    plainsql.Client: {
        "call", "interactive", "perform", "query_as_sent", "run_transaction", "stream_bytes", "tell_when_unavailable",
    },
    plainsql.Transaction: {"committed", "fill"},
    Pending: {"fill"},
    dbapi.Connection: {"can_stream", "drop_notices", "learn_count", "note_write", "run", "run_many", "take_messages"},
    dbapi.Cursor: {"execute_numbered", "executemany_numbered"},
}  # fmt: skip
_WIDTH = 118
_PLACES = re.compile(r"plainsql\.\w+\.|typing\.|collections\.abc\.|~")


def reference() -> str:
    """The whole page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Connecting\n"
    yield from _function(plainsql.connect, "plainsql.connect")
    yield from _function(plainsql.connect_async, "plainsql.connect_async")
    yield from _class(plainsql.Client)
    yield f"## {plainsql.AsyncClient.__name__}\n\n{_ASYNC}"
    for kind in (
        plainsql.Transaction,
        Pending,
        plainsql.Result,
        plainsql.Notice,
        plainsql.Row,
        plainsql.TransactionResult,
        plainsql.Stream,
    ):
        yield from _class(kind)
    yield "## Errors\n"
    yield _text(errors.__doc__) + "\n"
    for error in (plainsql.ServiceError, plainsql.NetworkError, plainsql.ResultError):
        yield from _class(error, level="###")
    yield "## Control-plane objects\n"
    for noun in (control.Key, control.Session, control.Database, control.Organization):
        yield from _record(noun)
    yield "## plainsql.dbapi\n"
    yield _text(dbapi.__doc__) + "\n"
    yield from _function(dbapi.connect, "plainsql.dbapi.connect")
    yield from _class(dbapi.Connection, level="###")
    yield from _class(dbapi.Cursor, level="###")
    yield "### Exceptions\n"
    yield _text(importlib.import_module("plainsql.dbapi.exceptions").__doc__) + "\n"
    yield "## The SQLAlchemy dialect\n"
    yield _text(importlib.import_module("plainsql.dialect").__doc__)


def _class(kind: type[Any], *, level: str = "##") -> Iterator[str]:
    yield f"{level} {kind.__name__}\n"
    yield _text(kind.__doc__) + "\n"
    for name, member in _members(kind):
        if isinstance(member, property):
            yield f"- **`{name}`**: {_sentence(member.fget)}"
    if any(isinstance(member, property) for _, member in _members(kind)):
        yield ""
    for name, member in _members(kind):
        if not isinstance(member, property):
            yield from _function(member, name, level=f"{level}#")


def _members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The public members with a docstring, in source order, those of the base classes first."""
    seen: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        if base.__module__.startswith("plainsql"):
            seen |= vars(base)
    for name, member in seen.items():
        function = member.fget if isinstance(member, property) else member
        if (
            not name.startswith("_")
            and name not in _INNER.get(kind, ())
            and inspect.isfunction(function)
            and function.__doc__
        ):
            yield name, member


def _function(function: Any, name: str, *, level: str = "###") -> Iterator[str]:
    yield f"{level} {name}\n"
    yield f"```\n{_signature(function, name.rpartition('.')[2])}\n```\n"
    yield _text(function.__doc__) + "\n"


def _signature(function: Any, name: str) -> str:
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.name != "self"]
    parts = [_parameter(each) for each in given]
    first = next((at for at, each in enumerate(given) if each.kind is each.KEYWORD_ONLY), None)
    if first is not None and not any(each.kind is each.VAR_POSITIONAL for each in given):
        parts.insert(first, "*")
    returned = _annotation(signature.return_annotation)
    line = f"{name}({', '.join(parts)}) -> {returned}"
    if len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f") -> {returned}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {_annotation(parameter.annotation)}{default}"


def _annotation(annotation: Any) -> str:
    """An annotation as in the source, without module prefixes."""
    if isinstance(annotation, str):
        return annotation.replace("dt.", "datetime.").strip("'\"")
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return _PLACES.sub("", str(annotation))


def _record(kind: type[Any]) -> Iterator[str]:
    yield f"### {kind.__name__}\n"
    yield f"{_text(kind.__doc__)} Fields: {', '.join(f'`{name}`' for name in kind.__annotations__)}.\n"


def _sentence(function: Any) -> str:
    return " ".join(_text(function.__doc__).split())


def _text(doc: str | None) -> str:
    """A docstring as Markdown. Diagrams in it are already code blocks, indented by four."""
    assert doc is not None
    return inspect.cleandoc(doc)


if __name__ == "__main__":
    PAGE.write_text(reference())
