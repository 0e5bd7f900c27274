"""Of a body, only scalars in their plainest form may differ; what the lane reads, msgspec reads the same."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.extension_modules import COMPILED

if COMPILED:
    from plainsql_server.lane.plans.frame import Scalars
    from plainsql_server.lane.plans.plan import QueryPlans, blanked

pytestmark = [pytest.mark.unit, pytest.mark.compiled]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"1", [b"1"]),
        (b'1, -2.5e+3 ,0,"x",null,true,false', [b"1", b"-2.5e+3", b"0", b"x", None, b"true", b"false"]),
        ('"ü😀"'.encode(), ["ü😀".encode()]),
        (b'""', [b""]),
        (b"-0", [b"-0"]),
    ],
)
def test_plain_scalars_are_read(text: bytes, values: list[bytes | None]) -> None:
    assert Scalars().parse(text) == values


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b",", b"1,", b",1", b"1 2", b"01", b"1.", b".1", b"+1", b"--1", b"1e", b"1e+", b"0x1", b"NaN",
        b"Infinity", b"nul", b"nullx", b"True", b"[1]", b"{}", b"]", b"1]", b'"', b'"a', b'a"', b'"a"b', b'"a\\n"',
        b'"\\u0041"', b'"\n"', b'"\x00"', b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b"1\n", b"\t1", b"'a'", b"1;2",
        b",".join([b"1"] * 33), b'"' + b"a" * 8192 + b'"',
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_ordinary_path(text: bytes) -> None:
    assert Scalars().parse(text) is None


_scalar = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)


@given(st.lists(_scalar, min_size=1, max_size=8), st.booleans())
def test_what_is_read_is_what_msgspec_reads(values: list[Any], compact: bool) -> None:
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":") if compact else None)
    assert_same(text[1:-1].encode("utf-8", "ignore"))


@given(st.text(alphabet='0123456789-+.eE"\\ ,truefalsn[]{}x\x7f\u00e9', max_size=24))
def test_no_text_is_read_that_msgspec_does_not_read(text: str) -> None:
    assert_same(text.encode())


def assert_same(text: bytes) -> None:
    read = Scalars().parse(text)
    if read is not None:
        decoded = msgspec.json.decode(b"[" + text + b"]", type=list[msgspec.Raw])
        expected = [bytes(raw).strip() for raw in decoded]
        assert read == [
            None if raw == b"null" else msgspec.json.decode(raw, type=str).encode() if raw[:1] == b'"' else raw
            for raw in expected
        ]


def test_a_body_with_the_same_frame_has_the_same_plan() -> None:
    known = QueryPlans(Scalars())
    plan = known.of(b'{"sql":"select $1","params":[1]}')
    assert plan is not None
    assert plan is known.of(b'{"sql":"select $1","params":["a, b"]}')
    assert plan.steps[0].sql == "select $1"
    assert plan is not known.of(b'{"sql":"select $1 ","params":[1]}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"sql":"select $1","params":[1],"database":"x"}', b'{"database":"y","params":[1],"sql":"select $1"}',
        b'{"params":[1], "sql":"select a[$1]"}', b'{"sql":"select 1"}', b'{"sql":"select 1","params":[]}',
    ],
)  # fmt: skip
def test_the_order_of_members_does_not_matter(body: bytes) -> None:
    plan, sent = QueryPlans(Scalars()).of(body), json.loads(body)
    if plan is not None:
        assert (plan.steps[0].sql, plan.database) == (sent["sql"], sent.get("database"))


@pytest.mark.parametrize("first", [0, 1, 7])
def test_brackets_in_the_statement_are_not_taken_for_the_parameters(first: int) -> None:
    known = QueryPlans(Scalars())

    def body(subscript: int) -> bytes:
        return json.dumps({"params": [first], "sql": f"select tags[{subscript}] from t where id = $1"}).encode()

    for subscript in (first, 5, first, 8):
        plan = known.of(body(subscript))
        assert plan is None or f"tags[{subscript}]" in plan.steps[0].sql


_text = st.text(alphabet="ab[]0 1,'$", max_size=8)


@given(_text, _text, st.lists(st.integers(0, 9), max_size=2), st.lists(st.integers(0, 9), max_size=2), st.booleans())
def test_a_plan_that_is_found_is_that_of_the_body(
    one: str, other: str, params: list[int], changed: list[int], params_first: bool
) -> None:
    known = QueryPlans(Scalars())

    def body(text: str, values: list[int]) -> bytes:
        sent: dict[str, Any] = {"sql": f"select {text}", "params": values}
        return json.dumps(dict(reversed(sent.items())) if params_first else sent).encode()

    for text, values in ((one, params), (other, changed), (one, changed), (other, params)):
        plan = known.of(body(text, values))
        if plan is not None:
            assert plan.steps[0].sql == f"select {text}"
            read = plan.frame.parse(body(text, values), Scalars())
            assert read == [str(value).encode() for value in values]


def test_a_timeout_of_any_length_is_a_number_that_c_knows() -> None:
    plan = QueryPlans(Scalars()).of(b'{"sql":"select 1","timeout_ms":1%b}' % (b"0" * 400))
    assert plan is not None
    assert plan.timeout_ms == 1 << 30


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b'{"sql":1}', b'{"sql":"begin"}', b'{"sql":"select $1","params":[[1]]}',
        b'{"sql":"/*+ STREAM */ select 1"}', b'{"sql":"select 1","timeout_ms":99}', b'{"sql":"select 1","unknown":1}',
        b'{"sql":"select $1","params":["\\u0041"]}',
    ],
)  # fmt: skip
def test_a_body_that_the_ordinary_path_must_read_has_no_plan(body: bytes) -> None:
    assert QueryPlans(Scalars()).of(body) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"select 12, 3", b"select 0, 0"), (b"select a1, $1, 1a, 2e3 from t_4", b"select a1, $1, 1a, 2e3 from t_4"),
        (b"select 1.5", b"select 0.0"), (b"select E'\\101 5'", b"select E'\\101 5'"), (b"", b""), (b"7", b"0"),
        ("é1 2".encode(), "é1 0".encode()),
    ],
)  # fmt: skip
def test_whole_numbers_do_not_tell_statements_apart(text: bytes, key: bytes) -> None:
    assert blanked(text) == key
