"""A head shows who calls and for which database only where the ordinary path finds the same in it."""

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plainsql_server.core import credential
from plainsql_server.core.names import DATABASE_NAME
from plainsql_server.extension_modules import COMPILED
from plainsql_server.http.app.authentication import secret_of
from server.tests.lane.known import KEY, OTHER_KEY, TOKEN, caller_in
from server.tests.lane.parser import Parser

if COMPILED:
    from plainsql_server.lane.known_head import LENGTH, SECRET, KnownHead
    from plainsql_server.lane.learning import learn_head

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

BODY = b'{"sql":"select 1"}'


def request_with(*lines: bytes) -> bytes:
    """A request with these lines in its head, beside those that it needs."""
    head = [b"POST /v1/query HTTP/1.1", b"Host: x", *lines, b"Content-Type: application/json"]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(BODY), b"", BODY])


def known_by(data: bytes) -> "KnownHead | None":
    learned = learn_head(data, Parser().read(data), b"application/json", secret_of)
    return None if learned is None else learned.known


NAMED = request_with(b"Authorization: Bearer " + KEY, b"X-Database: mine")
UNNAMED = request_with(b"Authorization: Bearer " + KEY)


@pytest.mark.parametrize("secret", [OTHER_KEY, TOKEN])
@pytest.mark.parametrize("name", [b"a", b"other-1", b"other_2", b"z" * 63])
def test_other_callers_are_known_by_the_same_head(secret: bytes, name: bytes) -> None:
    known = known_by(NAMED)
    assert known is not None
    data = NAMED.replace(KEY, secret).replace(b"mine", name)
    assert known.match(data) == known.COMPLETE
    assert caller_in(known, data) == (secret, name)
    assert data[known.body_at :] == BODY


@pytest.mark.parametrize("new", [credential.new_key, credential.new_session_token])
def test_secrets_that_the_service_makes_are_of_the_form_that_is_known(new: Callable[[], credential.Secret]) -> None:
    known = known_by(UNNAMED)
    assert known is not None
    for _ in range(100):
        secret = new().text.encode()
        data = UNNAMED.replace(KEY, secret)
        assert known.match(data) == known.COMPLETE
        assert caller_in(known, data) == (secret, None)


def test_a_head_without_a_database_shows_none_after_one_that_has_a_database() -> None:
    named, unnamed = known_by(NAMED), known_by(UNNAMED)
    assert named is not None
    assert unnamed is not None
    assert (named.match(UNNAMED), unnamed.match(NAMED)) == (0, 0)
    assert unnamed.match(UNNAMED) == unnamed.COMPLETE
    assert caller_in(unnamed, UNNAMED) == (KEY, None)


HOSTILE_SECRETS = [
    b"", b" ", KEY[:-1], KEY + b"a", KEY * 2, b" " + KEY, KEY + b" ", KEY + b"\t", b"\t" + KEY, KEY[:-1] + b" ",
    KEY[:20] + b" " + KEY[21:], KEY[:20] + b"\t" + KEY[21:], KEY[:20] + b"\r" + KEY[21:], KEY[:20] + b"\n" + KEY[21:],
    KEY[:20] + b"\r\n" + KEY[22:], KEY[:20] + b"\r\n\r\n" + KEY[24:], KEY[:20] + b"\0" + KEY[21:],
    KEY[:20] + b"\xc3\xa9" + KEY[22:], KEY[:20] + b"\xff" + KEY[21:], KEY[:20] + b"," + KEY[21:],
    KEY[:20] + b"_" + KEY[21:], KEY[:20] + b"@" + KEY[21:], KEY[:20] + b"[" + KEY[21:], KEY[:20] + b"{" + KEY[21:],
    KEY[:20] + b"`" + KEY[21:], KEY[:20] + b"/" + KEY[21:], KEY[:20] + b":" + KEY[21:], KEY.upper(),
    b"svc_x_" + KEY[6:], b"svc_K_" + KEY[6:], b"svc-k-" + KEY[6:], b'"' + KEY[1:-1] + b'"', KEY + b"\r\nX-Other: y",
    KEY + b"\r\nAuthorization: Bearer " + OTHER_KEY, KEY[:-1] + b"\xb2",
]  # fmt: skip


@pytest.mark.parametrize("secret", HOSTILE_SECRETS)
def test_another_form_of_a_secret_is_not_known(secret: bytes) -> None:
    known = known_by(UNNAMED)
    assert known is not None
    assert known.match(UNNAMED.replace(KEY, secret)) == 0


@pytest.mark.parametrize("at", range(6, len(KEY)))
def test_no_byte_of_a_secret_may_be_anything_but_a_letter_or_digit(at: int) -> None:
    known = known_by(UNNAMED)
    assert known is not None
    for byte in range(256):
        data = UNNAMED.replace(KEY, KEY[:at] + bytes([byte]) + KEY[at + 1 :])
        assert known.match(data) == (known.COMPLETE if re.fullmatch(rb"[0-9A-Za-z]", bytes([byte])) else 0)


@pytest.mark.parametrize(
    "name",
    [
        b"", b" ", b" mine", b"mine ", b"mine\t", b"\tmine", b"Mine", b"MINE", b"1mine", b"-mine", b"_mine", b"m" * 64,
        b"mi ne", b"mine\r", b"mi\nne", b"mine\r\nX-Other: y", b"mine\r\nX-Database: other", b"m\xc3\xa9ne", b"m\xff",
        b"mine,other", b"mi%6ee", b'"mine"', b"mine;", b"mi\0ne", b"mi.ne",
    ],
)  # fmt: skip
def test_another_form_of_a_databases_name_is_not_known(name: bytes) -> None:
    known = known_by(NAMED)
    assert known is not None
    assert known.match(NAMED.replace(b"mine", name)) == 0


@pytest.mark.parametrize("scheme", [b"bearer", b"BEARER", b"BeArEr"])
def test_the_scheme_is_one_of_the_bytes_that_must_be_equal(scheme: bytes) -> None:
    other = UNNAMED.replace(b"Bearer", scheme)
    known, known_other = known_by(UNNAMED), known_by(other)
    assert known is not None
    assert known_other is not None
    assert (known.match(other), known_other.match(UNNAMED)) == (0, 0)
    assert known_other.match(other.replace(KEY, OTHER_KEY)) == known_other.COMPLETE


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (b"Authorization:",),
        (b"Authorization: Bearer",),
        (b"Authorization: Bearer ",),
        (b"Authorization: " + KEY,),
        (b"Authorization: Basic " + KEY,),
        (b"Authorization:Bearer " + KEY,),
        (b"Authorization: Bearer  " + KEY,),
        (b"Authorization:  Bearer " + KEY,),
        (b"Authorization: Bearer\t" + KEY,),
        (b"Authorization: Bearer " + KEY + b" ",),
        (b"Authorization: Bearer " + KEY[:-1],),
        (b"Authorization: Bearer " + KEY + b"a",),
        (b"Authorization: Bearer svc_k_x",),
        (b"Authorization: Bearer " + KEY, b"Authorization: Bearer " + OTHER_KEY),
        (b"Authorization: Bearer " + KEY, b"authorization: Bearer " + KEY),
        (b"Authorization: Basic x", b"Authorization: Bearer " + KEY, b"Authorization: Basic x"),
        (b"Authorization: Bearer " + KEY, b"X-Database:"),
        (b"Authorization: Bearer " + KEY, b"X-Database: "),
        (b"Authorization: Bearer " + KEY, b"X-Database: Mine"),
        (b"Authorization: Bearer " + KEY, b"X-Database:mine"),
        (b"Authorization: Bearer " + KEY, b"X-Database: mine "),
        (b"Authorization: Bearer " + KEY, b"X-Database: mine", b"X-Database: other"),
        (b"Authorization: Bearer " + KEY, b"X-Database: mine", b"x-database: mine"),
        (b"Authorization: Bearer " + KEY, b"X-Database: m\xc3\xa9ne"),
    ],
)
def test_a_head_whose_caller_must_be_parsed_is_not_learned(lines: tuple[bytes, ...]) -> None:
    assert known_by(request_with(*lines)) is None


def test_a_known_head_has_one_secret_and_one_length() -> None:
    with pytest.raises(ValueError, match="a secret"):
        KnownHead((b"a", b"b"), (LENGTH,))
    with pytest.raises(ValueError, match="at most one span of a kind"):
        KnownHead((b"a", b"b", b"c", b"d"), (LENGTH, SECRET, SECRET))


INSERTED = st.sampled_from([
    b"\r\n", b"\r", b"\n", b" ", b"\t", b":", b"\0", b"\xff", b"\xc3\xa9", b"Bearer ", b"bearer ", KEY, OTHER_KEY,
    TOKEN, KEY[:10], b"mine", b"other", b"a", b"_", b"-", b"0", b"Authorization: Bearer " + OTHER_KEY + b"\r\n",
    b"X-Database: other\r\n", b"\r\nX-Database: other", b"\r\nAuthorization: Basic x", b"X-Forwarded-For: 1\r\n",
    b"\r\n\r\n",
])  # fmt: skip
SECRETS = st.one_of(
    st.sampled_from([KEY, OTHER_KEY, TOKEN, *HOSTILE_SECRETS]),
    st.from_regex(rb"svc_[ks]_[0-9A-Za-z]{37,39}", fullmatch=True),
)
NAMES = st.one_of(st.from_regex(DATABASE_NAME.pattern.encode(), fullmatch=True), st.binary(max_size=4))
EDITS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 50), st.one_of(INSERTED, st.binary(max_size=3))), max_size=3
)


@given(is_named=st.booleans(), secret=SECRETS, name=NAMES, edits=EDITS)
@example(is_named=True, secret=OTHER_KEY, name=b"other", edits=[])
@example(is_named=False, secret=TOKEN, name=b"", edits=[])
def test_whatever_is_known_is_read_as_the_parser_reads_it(
    is_named: bool, secret: bytes, name: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    known = known_by(NAMED if is_named else UNNAMED)
    assert known is not None
    data = NAMED.replace(b"mine", name) if is_named else UNNAMED
    data = data.replace(KEY, secret)
    for start, size, inserted in edits:
        at = start % len(data)
        # Half of them near the values that are in question.
        if start % 2 and (found := data.find(b"Bearer")) >= 0:
            at = found + start % 70
        data = data[:at] + inserted + data[at + size :]
    if known.match(data) != known.COMPLETE:
        return
    whole = data[: known.body_at + known.body_size]
    request = Parser().read(whole)
    sent_secret, sent_name = caller_in(known, data)
    assert (request.method, request.path, request.query_string) == ("POST", "/v1/query", b"")
    assert secret_of(request).encode() == sent_secret
    assert request.headers.get(b"x-database") == sent_name
    assert request.body == whole[known.body_at :]
