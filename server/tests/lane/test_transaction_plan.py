"""A body of a transaction has a plan only if its lists of parameters are proven to be that and nothing else."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.extension_modules import COMPILED
from plainsql_server.http.data.transaction import TRANSACTION_BODY
from plainsql_server.http.server.requests import decode_json

if COMPILED:
    from plainsql_server.lane.plans import transaction_plan
    from plainsql_server.lane.plans.frame import Scalars
    from plainsql_server.lane.plans.transaction_plan import TransactionPlans

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

ONE = b'{"sql":"select $1","params":[1]}'


def plans() -> "TransactionPlans":
    return TransactionPlans(Scalars())


def body(*statements: bytes, more: bytes = b"") -> bytes:
    return b'{"statements":[%b]%b}' % (b",".join(statements), more)


def test_a_body_with_the_same_frame_has_the_same_plan() -> None:
    known = plans()
    plan = known.of(body(ONE, b'"select 2"', b'{"params":[1, 2],"sql":"select $1, $2"}'))
    assert plan is not None
    assert known.parameters(plan) == [[b"1"], [], [b"1", b"2"]]
    other = body(b'{"sql":"select $1","params":["]"]}', b'"select 2"', b'{"params":[null],"sql":"select $1, $2"}')
    assert known.of(other) is plan
    assert known.parameters(plan) == [[b"]"], [], [None]]
    assert [step.sql for step in plan.steps] == ["select $1", "select 2", "select $1, $2"]


def test_another_statement_or_option_has_another_plan() -> None:
    known = plans()
    bodies = [
        body(ONE), body(ONE, ONE), body(ONE, more=b',"max_rows":1'), body(b'{"sql":"select $2","params":[1]}'),
        body(b'"select 1"'), body(b'"select 2"'),
    ]  # fmt: skip
    found = [known.of(each) for each in bodies]
    assert None not in found
    assert len({id(plan) for plan in found}) == len(bodies)


@pytest.mark.parametrize(
    "text",
    [
        body(), body(*[ONE] * 17), body(ONE, more=b',"timeout_ms":99'),
        body(ONE, b'{"sql":"select 1","expect":{"row_count":1}}'), body(ONE, b'{"sql":"select 1","database":"other"}'),
        body(b'{"sql":"select $1","params":[{"$ref":"0.row_count"}]}'), body(b'{"sql":"select $1","params":[[1]]}'),
        body(b'{"sql":"select $1","params":["a\\nb"]}'), body(b'"set local work_mem = 1"', ONE), body(b'""'),
        body(b'"commit"'), body(b'{"sql":"select $1","params":[1],"params":[2]}'), body(ONE, more=b',"nope":1'),
        b'{"statements":[%b],"statements":[%b]}' % (ONE, ONE), b"", b"{", b"[]",
        b'{"statements":[%b],"statements":[{"sql":"select $1","params":[[1]]}]}' % ONE,
        body(b'{"sql":"select $1","params":[%b]}' % b",".join([b"1"] * 33)),
        body(b'"select 1 /* %b */"' % (b"x" * 4096)),
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_ordinary_path(text: bytes) -> None:
    known = plans()
    assert known.of(text) is None
    # Nor is there a plan when it has been seen before.
    assert known.of(text) is None


def test_a_body_is_learned_from_in_two_decodings(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def decode(text: bytes, decoder: Any) -> Any:
        decoded.append(text)
        return decode_json(text, decoder)

    monkeypatch.setattr(transaction_plan, "decode_json", decode)
    known = plans()
    sent = body(*[ONE] * 16)
    assert known.of(sent) is not None
    assert len(decoded) == 2
    # In the second one, no parameter is what it was, or what another one is.
    probes = [str(each["params"][0]).encode() for each in json.loads(decoded[1])["statements"]]
    assert len(set(probes)) == 16
    assert not any(probe in sent for probe in probes)
    # But what is known is not decoded, and a body that has the probes in it proves nothing.
    assert known.of(body(*[ONE.replace(b"[1]", b"[2]")] * 16)) is not None
    assert known.of(body(b'{"sql":"select $1 /* %b */","params":[1]}' % probes[0])) is None
    assert len(decoded) == 3


_scalar = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=12))
_text = st.text(alphabet='ab1 [],:{}"\\$éparms', max_size=16)
_statement = st.one_of(
    _text.map(lambda text: f"select 1 /* {text} */"),
    st.builds(lambda text, params: {"sql": f"select $1 -- {text}", "params": params}, _text, st.lists(_scalar)),
    st.builds(lambda text, params: {"params": params, "sql": f"select $1 -- {text}"}, _text, st.lists(_scalar)),
    st.builds(lambda text: {"sql": f"select '\"params\": [1]' || '{text}'"}, _text),
)


@given(st.lists(_statement, min_size=1, max_size=4), st.lists(st.lists(_scalar), max_size=4), st.booleans())
def test_what_a_plan_reads_is_what_msgspec_reads(
    statements: list[Any], replaced: list[list[Any]], compact: bool
) -> None:
    known = plans()
    separators = (",", ":") if compact else None
    for _ in range(2):
        assert_same(known, json.dumps({"statements": statements}, ensure_ascii=False, separators=separators).encode())
        for each, params in zip(statements, replaced, strict=False):
            if not isinstance(each, str) and "params" in each:
                each["params"] = params


def assert_same(known: "TransactionPlans", text: bytes) -> None:
    plan = known.of(text)
    if plan is None:
        return
    sent = TRANSACTION_BODY.decode(text).statements
    assert [step.sql for step in plan.steps] == [each if isinstance(each, str) else each.sql for each in sent]
    assert known.parameters(plan) == [
        [] if isinstance(each, str) else [_as_text(bytes(raw).strip()) for raw in each.params] for each in sent
    ]


def _as_text(raw: bytes) -> bytes | None:
    if raw == b"null":
        return None
    return msgspec.json.decode(raw, type=str).encode() if raw[:1] == b'"' else raw
