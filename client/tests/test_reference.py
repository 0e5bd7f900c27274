"""The reference page is that of the source, and the two clients have the same calls."""

import inspect

import pytest

import plainsql
from client.reference import PAGE, reference

pytestmark = pytest.mark.unit


def test_the_reference_is_that_of_the_docstrings() -> None:
    assert PAGE.read_text() == reference(), "Run `make reference`."


def test_every_public_call_has_a_docstring() -> None:
    for kind in (plainsql.Client, plainsql.AsyncClient, plainsql.Result, plainsql.Stream, plainsql.AsyncStream):
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            assert name.startswith("_") or inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_both_clients_have_the_same_calls_with_the_same_words() -> None:
    of_commands = {"query_as_sent", "stream_bytes", "tell_when_unavailable"}
    ours, theirs = (
        {name: member for name, member in vars(kind).items() if inspect.isfunction(member) and not name.startswith("_")}
        for kind in (plainsql.Client, plainsql.AsyncClient)
    )
    assert set(ours) - of_commands == set(theirs)
    for name, member in theirs.items():
        # What `run` calls is a coroutine function in one of them.
        same, other = (
            [each.replace(annotation="") if each.name == "work" else each for each in signature.parameters.values()]
            for signature in (inspect.signature(ours[name]), inspect.signature(member))
        )
        assert same == other, name
        if name != "transaction":
            assert ours[name].__doc__ == member.__doc__, name
